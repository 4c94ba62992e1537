/* cpu.h - what this machine and this process may use: CPU features, usable cores.                     (rank 3) */
#ifndef PN_CPU_H
#define PN_CPU_H

#include "common.h"

/* The CPU has AVX2 and F16C and the operating system saves their registers. False on other architectures. */
bool cpu_has_avx2(void);
/* Behind pn_default_threads(); see there. */
int cpu_default_threads(char *why, size_t cap);

#endif
