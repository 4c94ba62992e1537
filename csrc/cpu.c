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

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__x86_64__)
/* Register `index` (0 eax .. 3 edx) of a CPUID leaf, subleaf 0; 0 where there is no such leaf. Asked for where a
 * virtual machine may hide what usually comes along, or where older libgcc has no name for a feature. */
static unsigned cpuid_register(unsigned leaf, int index) {
    unsigned r[4] = { 0 };
    return __get_cpuid_count(leaf, 0, &r[0], &r[1], &r[2], &r[3]) ? r[index] : 0;
}
#endif

bool cpu_has_avx2(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const unsigned need = bit_F16C | bit_FMA;
    return __builtin_cpu_supports("avx2") && (cpuid_register(1, 2) & need) == need;
#else
    return false;
#endif
}

bool cpu_has_avx512vnni(void) {
#if defined(__x86_64__)
    /* __builtin_cpu_supports asks the operating system about the registers too. */
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           (cpuid_register(7, 2) & bit_AVX512VNNI);
#else
    return false;
#endif
}

bool cpu_has_dotprod(void) {
#if defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__aarch64__) && defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, NULL, 0) == 0 && has;
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

/* Is `word` one of the comma-separated `words`? */
static bool is_listed(const char *words, const char *word) {
    const size_t len = strlen(word);
    for (;;) {
        const size_t n = strcspn(words, ",");
        if (n == len && memcmp(words, word, n) == 0) return true;
        if (!words[n]) return false;
        words += n + 1;
    }
}

/* The quota of one line of /proc/self/cgroup, "number:controllers:/group"; no controllers means v2. Inside a container
 * the group may not be visible under the mount; the mount's own root is then the container's group and is looked at
 * anyway. A v1 hierarchy is mounted under the names of its controllers, or under cpu alone; v2 beside v1 under
 * unified. */
static double quota_of_line(const char *root, char *line) {
    char mount[4096];
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) return 0;
    *group++ = 0;
    controllers++;
    group[strcspn(group, "\n")] = 0;
    if (strcmp(group, "/") == 0) group = (char *)"";
    if (*controllers && !is_listed(controllers, "cpu")) return 0;
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, *controllers ? "/" : "", controllers);
    const double quota = quota_up_from(mount, group);
    if (quota > 0) return quota;
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%s", root, *controllers ? "cpu" : "unified");
    return quota_up_from(mount, group);
}

double cpu_quota(const char *root) {
    double tightest = 0;
    char line[4096];
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        const double quota = quota_of_line(root, line);
        if (quota > 0 && (tightest <= 0 || quota < tightest)) tightest = quota;
    }
    fclose(file);
    return tightest;
}

/* The next range of a list such as "0-3,8\n"; false at its end or where it is none. */
static bool next_range(const char **at, unsigned long *first, unsigned long *last) {
    char *end;
    if (**at == ',') ++*at;
    *first = *last = strtoul(*at, &end, 10);
    if (end == *at) return false;
    if (*end == '-') {
        const char *second = end + 1;
        *last = strtoul(second, &end, 10);
        if (end == second) return false;
    }
    *at = end;
    return true;
}

/* Is `cpu` the first thread of its physical core that may be used? */
static bool is_first_of_core(const char *root, const bool *usable, size_t cpu) {
    char path[4200], line[512];
    unsigned long first, last;
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%zu/topology/thread_siblings_list", root, cpu);
    if (!read_line(path, line, sizeof line)) return true;
    for (const char *at = line; next_range(&at, &first, &last);) /* "0,64" or "0-1" */
        for (unsigned long other = first; other <= last && other < cpu; other++)
            if (usable[other]) return false;
    return true;
}

/* How fast the kernel says that a core is, in comparison with others of this machine: the capacity on ARM; on hybrid
 * x86 the list of the efficient cores. The same for all cores where it says nothing. */
static long core_speed(const char *root, size_t cpu) {
    char path[4200], line[512];
    unsigned long first, last;
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%zu/cpu_capacity", root, cpu);
    if (read_line(path, line, sizeof line)) return strtol(line, NULL, 10);
    snprintf(path, sizeof path, "%s/sys/devices/cpu_atom/cpus", root);
    if (!read_line(path, line, sizeof line)) return 1024;
    for (const char *at = line; next_range(&at, &first, &last);)
        if (cpu >= first && cpu <= last) return 1024 / 2 - 1;
    return 1024;
}

/* The affinity mask of this thread as one bool per CPU, owned; NULL without memory or an answer. */
static bool *affinity_mask(size_t *n_cpus) {
    bool *usable = NULL;
    for (size_t n = 1024; !usable && n <= (1u << 20); n *= 4) { /* the mask must be as large as the kernel's */
        cpu_set_t *set = CPU_ALLOC(n);
        if (!set) return NULL;
        const size_t bytes = CPU_ALLOC_SIZE(n);
        if (sched_getaffinity(0, bytes, set) == 0 && (usable = malloc(n * sizeof *usable)))
            for (size_t cpu = 0; cpu < n; cpu++) usable[cpu] = CPU_ISSET_S(cpu, bytes, set);
        CPU_FREE(set);
        *n_cpus = n;
    }
    return usable;
}

#else

double cpu_quota(const char *root) {
    (void)root;
    return 0;
}

static bool is_first_of_core(const char *root, const bool *usable, size_t cpu) {
    (void)root;
    return usable[cpu];
}

static long core_speed(const char *root, size_t cpu) {
    (void)root, (void)cpu;
    return 1024;
}

static bool *affinity_mask(size_t *n_cpus) {
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    *n_cpus = n > 0 && n < 4096 ? (size_t)n : 1;
    bool *usable = malloc(*n_cpus * sizeof *usable);
    for (size_t i = 0; usable && i < *n_cpus; i++) usable[i] = true;
    return usable;
}

#endif

int cpu_threads(const char *root, const bool *usable, size_t n_cpus, char *why, size_t cap) {
    int logical = 0, physical = 0, fast = 0;
    long best = 0;
    for (size_t cpu = 0; cpu < n_cpus; cpu++) {
        const long speed = usable[cpu] ? core_speed(root, cpu) : 0;
        if (speed > best) best = speed;
    }
    for (size_t cpu = 0; cpu < n_cpus; cpu++) {
        if (!usable[cpu]) continue;
        logical++;
        if (!is_first_of_core(root, usable, cpu)) continue;
        physical++;
        fast += core_speed(root, cpu) >= best / 2; /* less than half as fast: an efficient core */
    }
    if (physical < 1) logical = physical = fast = 1; /* nothing is known */
    const double quota = cpu_quota(root);
    int n = fast;
    if (quota > 0 && quota < n) n = quota < 1 ? 1 : (int)quota;
    if (n > 256) n = 256;
    if (!cap) return n;
    if (quota > 0 && quota < fast)
        snprintf(why, cap, "cgroup quota of %.2f cores, rounded down (%d usable CPUs)", quota, logical);
    else if (fast < physical)
        snprintf(why, cap, "%d fast ones of %d physical cores behind %d usable CPUs", fast, physical, logical);
    else
        snprintf(why, cap, "%d physical cores behind %d usable CPUs", physical, logical);
    return n;
}

int pn_default_threads(char *why, size_t cap) {
    size_t n_cpus = 0;
    bool *usable = affinity_mask(&n_cpus);
    const int n = cpu_threads("", usable, usable ? n_cpus : 0, why, cap);
    free(usable);
    return n;
}
