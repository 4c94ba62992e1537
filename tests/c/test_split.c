/* test_split.c - models in several files under the sanitizers: opened from any part, cut short anywhere, damaged
 * anywhere, closed after loading. What the whole must read like is tested from Python (tests/test_split.py). */
#include "check.h"
#include "gguf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_PARTS = 3, PART_BYTES_MAX = 1024, ROW = 32 };

static char folder[] = "/tmp/pantheon-split-XXXXXX";

typedef struct part {
    uint8_t bytes[PART_BYTES_MAX];
    size_t len;
} part;

static void put(part *p, const void *bytes, size_t len) {
    memcpy(p->bytes + p->len, bytes, len);
    p->len += len;
}
static void put_u32(part *p, uint32_t x) {
    put(p, &x, sizeof x);
}
static void put_u64(part *p, uint64_t x) {
    put(p, &x, sizeof x);
}
static void put_str(part *p, const char *s) {
    put_u64(p, strlen(s));
    put(p, s, strlen(s));
}
static void put_kv(part *p, const char *key, uint32_t value) {
    put_str(p, key);
    put_u32(p, PN_VALUE_U32);
    put_u32(p, value);
}

/* Part `no` with two tensors of ROW floats, which begin with 10 * no + 1 and 10 * no + 2. */
static part make_part(uint32_t no) {
    part p = { .len = 0 };
    put(&p, "GGUF", 4);
    put_u32(&p, 3);
    put_u64(&p, 2);
    put_u64(&p, no ? 3 : 4);
    if (no == 0) put_kv(&p, "test.number", 7);
    put_kv(&p, "split.no", no);
    put_kv(&p, "split.count", N_PARTS);
    put_kv(&p, "split.tensors.count", 2 * N_PARTS);
    for (uint32_t i = 0; i < 2; i++) {
        const char name[] = { (char)('a' + no), (char)('0' + i), 0 };
        put_str(&p, name);
        put_u32(&p, 1);
        put_u64(&p, ROW);
        put_u32(&p, DTYPE_F32);
        put_u64(&p, (uint64_t)i * ROW * sizeof(float));
    }
    while (p.len % 32) put(&p, "", 1);
    for (uint32_t i = 0; i < 2; i++)
        for (int j = 0; j < ROW; j++) {
            const float x = (float)(10 * no + i + 1 + 100 * (uint32_t)j);
            put(&p, &x, sizeof x);
        }
    return p;
}

static const char *path_of(uint32_t no) {
    static char paths[N_PARTS][sizeof folder + 32];
    snprintf(paths[no], sizeof paths[no], "%s/m-%05u-of-%05d.gguf", folder, no + 1, N_PARTS);
    return paths[no];
}

static void write_part(uint32_t no, const uint8_t *bytes, size_t len) {
    FILE *file = fopen(path_of(no), "wb");
    CHECK(file && fwrite(bytes, 1, len, file) == len && fclose(file) == 0);
}

static void write_all(void) {
    for (uint32_t no = 0; no < N_PARTS; no++) {
        const part p = make_part(no);
        write_part(no, p.bytes, p.len);
    }
}

/* Read and drop every tensor: a position of one part used with the bytes of another would be seen. */
static void check_whole(const pn_gguf *g) {
    uint32_t number = 0;
    bool present;
    CHECK(pn_gguf_n_parts(g) == N_PARTS && pn_gguf_n_tensors(g) == 2 * N_PARTS && pn_gguf_n_metadata(g) == 1);
    CHECK(gguf_get_u32(g, "test.number", &number, &present) == PN_OK && present && number == 7);
    CHECK(gguf_find_metadata(g, "split.count") < 0);
    for (uint64_t i = 0; i < 2 * N_PARTS; i++) {
        const char name[] = { (char)('a' + i / 2), (char)('0' + i % 2), 0 };
        float row[ROW];
        pn_tensor_info info;
        CHECK(gguf_find_tensor(g, name) == (int64_t)i);
        CHECK(pn_gguf_tensor(g, i, &info) == PN_OK && info.part == i / 2 && memcmp(info.name, name, 2) == 0);
        CHECK(pn_gguf_read_rows(g, i, 0, 1, row) == PN_OK && row[0] == (float)(10 * (i / 2) + i % 2 + 1));
        CHECK(memcmp(gguf_tensor_data(g, i), row, sizeof row) == 0);
        gguf_drop(g, i, gguf_tensor_data(g, i), sizeof row);
        CHECK(memcmp(gguf_tensor_data(g, i), row, sizeof row) == 0);
    }
}

static void test_open_any_part_gives_the_whole(void) {
    for (uint32_t no = 0; no < N_PARTS; no++)
        for (int use_mmap = 0; use_mmap < 2; use_mmap++) {
            pn_gguf *g;
            write_all();
            CHECK(gguf_open(path_of(no), use_mmap, &g) == PN_OK);
            if (g) check_whole(g);
            pn_gguf_free(g);
        }
}

static void test_detach_closes_all_parts_and_keeps_all_names(void) {
    pn_gguf *g;
    pn_tensor_info info;
    float row[ROW];
    write_all();
    CHECK(gguf_open(path_of(1), true, &g) == PN_OK);
    if (!g) return;
    CHECK(gguf_detach(g) == PN_OK && gguf_detach(g) == PN_OK);
    for (uint32_t no = 0; no < N_PARTS; no++) unlink(path_of(no));
    CHECK(gguf_find_tensor(g, "c1") == 5 && pn_gguf_tensor(g, 5, &info) == PN_OK && memcmp(info.name, "c1", 2) == 0);
    CHECK(gguf_tensor_data(g, 5) == NULL && pn_gguf_read_rows(g, 5, 0, 1, row) == PN_ERR_ARGUMENT);
    gguf_drop(g, 5, (const uint8_t *)row, sizeof row);
    pn_gguf_free(g);
}

static void test_open_missing_part_names_it(void) {
    for (uint32_t lost = 0; lost < N_PARTS; lost++)
        for (uint32_t no = 0; no < N_PARTS; no++) {
            pn_gguf *g;
            if (no == lost) continue;
            write_all();
            unlink(path_of(lost));
            CHECK(gguf_open(path_of(no), true, &g) == PN_ERR_IO && !g);
            CHECK(strstr(pn_last_error(), strrchr(path_of(lost), '/') + 1) != NULL);
        }
}

static void test_open_any_truncation_of_any_part_is_refused(void) {
    for (uint32_t no = 0; no < N_PARTS; no++) {
        const part p = make_part(no);
        write_all();
        for (size_t len = 0; len < p.len; len++) {
            pn_gguf *g;
            write_part(no, p.bytes, len);
            CHECK(gguf_open(path_of((no + 1) % N_PARTS), len % 2, &g) == PN_ERR_TRUNCATED && !g);
        }
    }
}

/* Whatever a damaged byte makes of a part, reading all that opens stays within bounds. */
static void test_open_damage_is_an_error_or_harmless(void) {
    for (uint32_t no = 0; no < N_PARTS; no++) {
        const part good = make_part(no);
        write_all();
        for (size_t at = 0; at < good.len - 2 * ROW * sizeof(float); at++)
            for (uint32_t bit = 0; bit < 8; bit++) {
                part bad = good;
                pn_gguf *g;
                bad.bytes[at] ^= (uint8_t)(1 << bit);
                write_part(no, bad.bytes, bad.len);
                if (gguf_open(path_of(bit % N_PARTS), false, &g) != PN_OK) continue;
                for (uint64_t i = 0; i < pn_gguf_n_tensors(g); i++) {
                    float row[2 * ROW];
                    pn_tensor_info info;
                    CHECK(pn_gguf_tensor(g, i, &info) == PN_OK && gguf_tensor_data(g, i));
                    if (info.dims[0] <= 2 * ROW) (void)pn_gguf_read_rows(g, i, 0, 1, row);
                }
                pn_gguf_free(g);
            }
    }
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    RUN(test_open_any_part_gives_the_whole);
    RUN(test_detach_closes_all_parts_and_keeps_all_names);
    RUN(test_open_missing_part_names_it);
    RUN(test_open_any_truncation_of_any_part_is_refused);
    RUN(test_open_damage_is_an_error_or_harmless);
    for (uint32_t no = 0; no < N_PARTS; no++) unlink(path_of(no));
    rmdir(folder);
    return check_report();
}
