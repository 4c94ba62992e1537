/* cpu.h - what this machine and this process may use: CPU features, usable cores.                     (rank 3) */
#ifndef PN_CPU_H
#define PN_CPU_H

#include "common.h"

/* The CPU has AVX2, F16C and FMA and the operating system saves their registers. False on other architectures. */
bool cpu_has_avx2(void);
/* The same, with AVX-512 (F, BW, DQ, VL) and VNNI. */
bool cpu_has_avx512vnni(void);
/* The CPU has the AArch64 dot product instructions (sdot). False on other architectures. */
bool cpu_has_dotprod(void);
/* Cores' worth of time that the cgroups of this process allow, or 0 if they set no limit. `root` stands before /proc
 * and /sys: "" is this machine. */
double cpu_quota(const char *root);
/* Threads for a process that may run on the CPUs marked in usable[n_cpus], 1..256: one per physical core among them
 * (of a hybrid CPU those at least half as fast as its fastest), never more than the quota. Writes one line on the
 * reason to why[cap]; cap may be 0. */
int cpu_threads(const char *root, const bool *usable, size_t n_cpus, char *why, size_t cap);

#endif
