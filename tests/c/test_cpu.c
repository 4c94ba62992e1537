/* Usable cores from /proc and /sys of a machine that is made up in a temporary folder. */
#include "check.h"
#include "cpu.h"
#include "pantheon.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[64];

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk) {
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static void machine_begin(void) {
    const char *temp = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/pantheon-cpu-XXXXXX", temp && strlen(temp) < 32 ? temp : "/tmp");
    if (!mkdtemp(root)) abort();
}

static void machine_end(void) {
    nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Write `text` to root/path; the folders above come into being. */
static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(full, 0700);
    }
    FILE *file = fopen(full, "w");
    if (!file) abort();
    fputs(text, file);
    fclose(file);
}

static void put_siblings(int cpu, const char *list) {
    char path[96];
    snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(path, list);
}

static bool is_close(double a, double b) {
    return a > b - 1e-9 && a < b + 1e-9;
}

/* Threads on 8 CPUs without hyper-threading. */
static int threads_of_8(void) {
    const bool usable[8] = { true, true, true, true, true, true, true, true };
    return cpu_threads(root, usable, 8, NULL, 0);
}

static void test_quota_without_cgroups_is_none(void) {
    machine_begin();
    CHECK(is_close(cpu_quota(root), 0));
    CHECK(threads_of_8() == 8);
    put("proc/self/cgroup", "0::/app\n"); /* and nothing under /sys */
    CHECK(is_close(cpu_quota(root), 0));
    machine_end();
}

static void test_quota_v2_max_is_none(void) {
    machine_begin();
    put("proc/self/cgroup", "0::/app\n");
    put("sys/fs/cgroup/app/cpu.max", "max 100000\n");
    CHECK(is_close(cpu_quota(root), 0));
    CHECK(threads_of_8() == 8);
    machine_end();
}

static void test_quota_v2_of_the_group_is_rounded_down(void) {
    machine_begin();
    put("proc/self/cgroup", "0::/app\n");
    put("sys/fs/cgroup/app/cpu.max", "270000 100000\n");
    CHECK(is_close(cpu_quota(root), 2.7));
    CHECK(threads_of_8() == 2);
    machine_end();
}

static void test_quota_of_half_a_core_is_one_thread(void) {
    machine_begin();
    put("proc/self/cgroup", "0::/app\n");
    put("sys/fs/cgroup/app/cpu.max", "50000 100000\n");
    CHECK(is_close(cpu_quota(root), 0.5));
    CHECK(threads_of_8() == 1);
    machine_end();
}

static void test_quota_v2_of_a_parent_binds_the_child(void) {
    machine_begin();
    put("proc/self/cgroup", "0::/slice/app/inner\n");
    put("sys/fs/cgroup/slice/cpu.max", "300000 100000\n");
    put("sys/fs/cgroup/slice/app/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/slice/app/inner/cpu.max", "600000 100000\n");
    CHECK(is_close(cpu_quota(root), 3));
    CHECK(threads_of_8() == 3);
    put("sys/fs/cgroup/slice/app/cpu.max", "40000 20000\n"); /* another period */
    CHECK(is_close(cpu_quota(root), 2));
    machine_end();
}

static void test_quota_v2_of_the_mount_counts_where_the_group_is_not_visible(void) {
    machine_begin();
    put("proc/self/cgroup", "0::/../../outside/container\n");
    put("sys/fs/cgroup/cpu.max", "400000 100000\n");
    CHECK(is_close(cpu_quota(root), 4));
    put("proc/self/cgroup", "0::/\n");
    CHECK(is_close(cpu_quota(root), 4));
    machine_end();
}

static void test_quota_above_the_cores_changes_nothing(void) {
    machine_begin();
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "1600000 100000\n");
    CHECK(threads_of_8() == 8);
    machine_end();
}

static void test_quota_v1_is_read_under_either_name_of_the_mount(void) {
    machine_begin();
    put("proc/self/cgroup", "12:cpuset:/\n7:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "150000\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "50000\n");
    CHECK(is_close(cpu_quota(root), 3));
    machine_end();
    machine_begin();
    put("proc/self/cgroup", "7:cpu,cpuacct:/docker/abc\n");
    put("sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "200000\n"); /* on the parent */
    put("sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "-1\n"); /* no limit */
    put("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
    CHECK(is_close(cpu_quota(root), 2));
    CHECK(threads_of_8() == 2);
    machine_end();
}

static void test_quota_of_other_v1_controllers_does_not_count(void) {
    machine_begin();
    put("proc/self/cgroup", "3:cpuset:/a\n4:cpuacct:/a\n5:memory:/a\n");
    put("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    CHECK(is_close(cpu_quota(root), 0));
    machine_end();
}

static void test_quota_from_nonsense_is_none(void) {
    static const char *const TEXTS[] = { "", "\n", "0 0\n", "5\n", "-100000 100000\n", "100000 -1\n", "zehn 100000\n" };
    machine_begin();
    put("proc/self/cgroup", "no colon\n0:\n::\n0::/app\n");
    for (size_t i = 0; i < PN_ARRAY_LEN(TEXTS); i++) {
        put("sys/fs/cgroup/app/cpu.max", TEXTS[i]);
        CHECK(is_close(cpu_quota(root), 0));
    }
    machine_end();
}

static void test_threads_count_one_for_each_core_in_the_mask(void) {
    machine_begin();
    put_siblings(0, "0,2\n");
    put_siblings(1, "1,3\n");
    put_siblings(2, "0,2\n");
    put_siblings(3, "1,3\n");
    CHECK(cpu_threads(root, (bool[4]){ true, true, true, true }, 4, NULL, 0) == 2);
    CHECK(cpu_threads(root, (bool[4]){ true, false, true, false }, 4, NULL, 0) == 1);
    CHECK(cpu_threads(root, (bool[4]){ false, false, true, true }, 4, NULL, 0) == 2); /* neither first sibling */
    CHECK(cpu_threads(root, (bool[4]){ false, true, true, true }, 4, NULL, 0) == 2);
    CHECK(cpu_threads(root, (bool[4]){ false, false, false, true }, 4, NULL, 0) == 1);
    put_siblings(0, "0-1\n");
    put_siblings(1, "0-1\n");
    put_siblings(2, "2-3\n");
    put_siblings(3, "2-3\n");
    CHECK(cpu_threads(root, (bool[4]){ true, true, true, true }, 4, NULL, 0) == 2);
    CHECK(cpu_threads(root, (bool[4]){ true, true, false, false }, 4, NULL, 0) == 1);
    put_siblings(1, "what?\n");
    put_siblings(3, "3-\n");
    CHECK(cpu_threads(root, (bool[4]){ true, true, true, true }, 4, NULL, 0) == 4);
    machine_end();
}

static void test_threads_count_the_fast_cores_of_a_hybrid_cpu(void) {
    const bool all[6] = { true, true, true, true, true, true }, slow[6] = { [4] = true, [5] = true };
    char why[128];
    machine_begin();
    put("sys/devices/cpu_atom/cpus", "4-5\n");
    put_siblings(1, "0-1\n");
    CHECK(cpu_threads(root, all, 6, why, sizeof why) == 3);
    CHECK(strcmp(why, "3 fast ones of 5 physical cores behind 6 usable CPUs") == 0);
    CHECK(cpu_threads(root, slow, 6, NULL, 0) == 2); /* nothing faster may be used */
    machine_end();
    machine_begin();
    static const char *const CAPACITIES[] = { "260\n", "260\n", "870\n", "870\n", "870\n", "1024\n" };
    for (int cpu = 0; cpu < 6; cpu++) {
        char path[96];
        snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/cpu_capacity", cpu);
        put(path, CAPACITIES[cpu]);
    }
    CHECK(cpu_threads(root, all, 6, NULL, 0) == 4);
    CHECK(cpu_threads(root, (bool[6]){ true, true }, 6, NULL, 0) == 2);
    machine_end();
}

static void test_quota_v2_beside_v1_is_found_under_unified(void) {
    machine_begin();
    put("proc/self/cgroup", "3:memory:/a\n0::/app/inner\n");
    put("sys/fs/cgroup/unified/app/cpu.max", "250000 100000\n");
    CHECK(is_close(cpu_quota(root), 2.5));
    machine_end();
}

static void test_threads_are_between_1_and_256(void) {
    machine_begin();
    bool many[1000];
    memset(many, true, sizeof many);
    CHECK(cpu_threads(root, many, 1000, NULL, 0) == 256);
    CHECK(cpu_threads(root, NULL, 0, NULL, 0) == 1); /* the mask could not be read */
    machine_end();
}

static void test_threads_say_why(void) {
    const bool usable[4] = { true, true, true, true };
    char why[128];
    machine_begin();
    put_siblings(1, "0-1\n");
    CHECK(cpu_threads(root, usable, 4, why, sizeof why) == 3);
    CHECK(strcmp(why, "3 physical cores behind 4 usable CPUs") == 0);
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "270000 100000\n");
    CHECK(cpu_threads(root, usable, 4, why, sizeof why) == 2);
    CHECK(strcmp(why, "cgroup quota of 2.70 cores, rounded down (4 usable CPUs)") == 0);
    CHECK(cpu_threads(root, usable, 4, why, 7) == 2);
    CHECK(strcmp(why, "cgroup") == 0);
    machine_end();
}

static void test_threads_of_this_machine_are_possible(void) {
    char why[128] = "";
    const int n = pn_default_threads(why, sizeof why);
    CHECK(n >= 1 && n <= 256 && why[0]);
    CHECK(pn_default_threads(NULL, 0) == n);
}

int main(void) {
    RUN(test_quota_without_cgroups_is_none);
    RUN(test_quota_v2_max_is_none);
    RUN(test_quota_v2_of_the_group_is_rounded_down);
    RUN(test_quota_of_half_a_core_is_one_thread);
    RUN(test_quota_v2_of_a_parent_binds_the_child);
    RUN(test_quota_v2_of_the_mount_counts_where_the_group_is_not_visible);
    RUN(test_quota_above_the_cores_changes_nothing);
    RUN(test_quota_v1_is_read_under_either_name_of_the_mount);
    RUN(test_quota_of_other_v1_controllers_does_not_count);
    RUN(test_quota_from_nonsense_is_none);
    RUN(test_threads_count_one_for_each_core_in_the_mask);
    RUN(test_threads_count_the_fast_cores_of_a_hybrid_cpu);
    RUN(test_quota_v2_beside_v1_is_found_under_unified);
    RUN(test_threads_are_between_1_and_256);
    RUN(test_threads_say_why);
    RUN(test_threads_of_this_machine_are_possible);
    return check_report();
}
