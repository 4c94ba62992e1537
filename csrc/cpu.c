/* cpu.c - features by CPUID, usable cores by affinity mask, physical cores and cgroup quota.          (rank 3)
 *
 * Reads /proc and /sys once per call; keeps nothing. Never more threads than the quota allows: a thread above it is
 * throttled in the middle of a layer and holds up all others. */
#include "cpu.h"

#include "pantheon.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool cpu_has_avx2(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* F16C is not asked for: older libgcc cannot tell, and no CPU with AVX2 lacks it. */
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

#if defined(__linux__)

/* The first line of a small file into line[cap]; false if there is none. */
static bool read_line(const char *path, char *line, size_t cap) {
    FILE *file = fopen(path, "re");
    if (!file) return false;
    const bool ok = fgets(line, (int)cap, file) != NULL;
    fclose(file);
    return ok;
}

/* Cores' worth of CPU time per period from one cgroup folder (v2 cpu.max, v1 cfs quota), or 0 if unlimited. */
static double quota_of_folder(const char *folder) {
    char path[4200], line[128];
    long long quota = -1, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_line(path, line, sizeof line)) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2) return 0; /* "max 100000" */
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1) return 0;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1) return 0;
    }
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

/* The tightest quota from the group `root``group` up to `root`: a limit on a parent binds its children. */
static double quota_up_from(const char *root, const char *group) {
    char folder[4096];
    double tightest = 0;
    if (snprintf(folder, sizeof folder, "%s%s", root, group) >= (int)sizeof folder) return 0;
    for (;;) {
        const double quota = quota_of_folder(folder);
        if (quota > 0 && (tightest <= 0 || quota < tightest)) tightest = quota;
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < strlen(root)) return tightest;
        *slash = 0;
    }
}

/* The quota of this process's cgroup in either version, or 0. Inside a container the group named by /proc may not be
 * visible under the mount; the mount's own root is then the container's group and is looked at anyway. */
static double quota_of_process(void) {
    double tightest = 0;
    char line[4096];
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        controllers++;
        group[strcspn(group, "\n")] = 0;
        if (!strcmp(group, "/")) group = (char *)"";
        double quota = 0;
        if (!*controllers)
            quota = quota_up_from("/sys/fs/cgroup", group);
        else if (strstr(controllers, "cpu") && !strstr(controllers, "cpuset")) {
            quota = quota_up_from("/sys/fs/cgroup/cpu", group);
            if (quota <= 0) quota = quota_up_from("/sys/fs/cgroup/cpu,cpuacct", group);
        }
        if (quota > 0 && (tightest <= 0 || quota < tightest)) tightest = quota;
    }
    fclose(file);
    return tightest;
}

/* Is `cpu` the first thread of its physical core that the mask allows? */
static bool is_first_of_core(size_t cpu, const cpu_set_t *set, size_t set_bytes) {
    char path[96], line[512];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%zu/topology/thread_siblings_list", cpu);
    if (!read_line(path, line, sizeof line)) return true;
    for (char *at = line; *at && *at != '\n';) { /* "0,64" or "0-1" */
        char *end;
        const unsigned long first = strtoul(at, &end, 10);
        if (end == at) return true;
        const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (unsigned long other = first; other <= last && other < cpu; other++)
            if (CPU_ISSET_S(other, set_bytes, set)) return false;
        at = *end == ',' ? end + 1 : end;
        if (at == end && *at != '\n') break;
    }
    return true;
}

/* Logical CPUs in the affinity mask, and how many physical cores they make. */
static void count_cores(int *logical, int *physical) {
    *logical = *physical = 0;
    for (size_t n_cpus = 1024; n_cpus <= (1u << 20); n_cpus *= 4) { /* the mask must be as large as the kernel's */
        cpu_set_t *set = CPU_ALLOC(n_cpus);
        if (!set) break;
        const size_t bytes = CPU_ALLOC_SIZE(n_cpus);
        const bool ok = sched_getaffinity(0, bytes, set) == 0;
        if (ok) {
            for (size_t cpu = 0; cpu < n_cpus; cpu++) {
                if (!CPU_ISSET_S(cpu, bytes, set)) continue;
                ++*logical;
                if (is_first_of_core(cpu, set, bytes)) ++*physical;
            }
        }
        CPU_FREE(set);
        if (ok) break;
    }
    if (*logical < 1) *logical = 1;
    if (*physical < 1) *physical = 1;
}

#else

static double quota_of_process(void) {
    return 0;
}

static void count_cores(int *logical, int *physical) {
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    *logical = *physical = n > 0 && n < 4096 ? (int)n : 1;
}

#endif

int cpu_default_threads(char *why, size_t cap) {
    int logical, physical;
    count_cores(&logical, &physical);
    const double quota = quota_of_process();
    int n = physical;
    if (quota > 0 && quota < n) n = quota < 1 ? 1 : (int)quota;
    if (n > 256) n = 256;
    if (cap) {
        if (quota > 0 && quota < physical)
            snprintf(why, cap, "cgroup quota of %.2f cores, rounded down (%d usable CPUs)", quota, logical);
        else
            snprintf(why, cap, "%d physical cores behind %d usable CPUs", physical, logical);
    }
    return n;
}

int pn_default_threads(char *why, size_t cap) {
    return cpu_default_threads(why, cap);
}
