/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "unit/unit.h"

#include "gguf_build.h"
#include "io/inner.h"
#include "io/io.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/ingle-gguf-XXXXXX";
static char path[64];

static int make_dir(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/test.gguf", dir);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

struct heard {
    int n;
    char text[256];
};

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    (void)level;
    (void)kind;
    (void)subject;
    struct heard *h = arg;
    h->n++;
    snprintf(h->text, sizeof h->text, "%s", text);
}

static struct io_file *open_good(struct gb *b)
{
    struct io_file *f;
    struct err err;
    gb_good(b);
    gb_write(b, path);
    if (io_open(&f, path, NULL, &err))
        fail_msg("%s", err.msg);
    return f;
}

static void a_good_file_says_what_it_holds(void **state)
{
    (void)state;
    struct gb b = {0};
    struct err err;
    struct io_file *f = open_good(&b);
    assert_int_equal(io_kind(f), IO_GGUF);
    assert_string_equal(io_path(f), path);
    assert_int_equal(io_size(f), b.n);
    assert_int_equal(io_n_tensors(f), 3);
    assert_null(io_tensor_at(f, 3));
    assert_null(io_tensor_find(f, "d"));
    const struct io_tensor *t = io_tensor_find(f, "a.weight");
    assert_ptr_equal(t, io_tensor_at(f, 0));
    assert_int_equal(t->type, QUANT_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->ne[0], 4);
    assert_int_equal(t->ne[1], 2);
    assert_int_equal(t->ne[2], 1);
    assert_int_equal(t->n_bytes, 32);
    float y[32];
    assert_int_equal(io_read(f, t, 8, y, 8, NULL), INGLE_OK);
    assert_true(y[0] == 1 && y[1] == 1.5f);
    assert_memory_equal((const char *)io_mapped(f, t) + 8, y, 8);
    assert_int_equal(io_read(f, t, 28, y, 8, &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "tensor 'a.weight': 8 bytes at 28 of 32"));
    assert_int_equal(io_read(f, t, UINT64_MAX, y, 8, &err), INGLE_ARG);
    t = io_tensor_find(f, "b.weight");
    assert_int_equal(t->type, QUANT_Q4_0);
    quant_decode(t->type, io_mapped(f, t), y, 32);
    assert_true(y[0] == 1 - 8 && y[16] == -8 && y[15] == -8 && y[31] == 1 - 8);
    t = io_tensor_find(f, "c");
    assert_int_equal(t->type, QUANT_I32);
    assert_int_equal(io_read(f, t, 8, y, 4, NULL), INGLE_OK);
    io_close(f);
    gb_free(&b);
}

static void metadata_has_its_types(void **state)
{
    (void)state;
    struct gb b = {0};
    struct io_file *f = open_good(&b);
    const struct io_meta *m = io_metadata(f);
    assert_int_equal(io_meta_count(m), 18);
    assert_string_equal(io_meta_at(m, 0)->key, "general.architecture");
    assert_string_equal(io_meta_at(m, 17)->key, "t.none");
    assert_null(io_meta_at(m, 18));
    assert_null(io_meta_find(m, "t.u7"));
    uint64_t u;
    double d;
    bool yes;
    const char *s;
    size_t n;
    assert_int_equal(io_get_u64(m, "t.u8", 0, 255, &u, NULL), 0);
    assert_int_equal(u, 200);
    assert_int_equal(io_get_u64(m, "t.u16", 0, 65535, &u, NULL), 0);
    assert_int_equal(u, 10000);
    assert_int_equal(io_get_u64(m, "t.u32", 0, UINT64_MAX, &u, NULL), 0);
    assert_int_equal(u, 0x80000000);
    assert_int_equal(io_get_u64(m, "t.u64", 0, UINT64_MAX, &u, NULL), 0);
    assert_true(u == 0x8000000000000001);
    assert_int_equal(io_meta_find(m, "t.i8")->v.i, -2);
    assert_int_equal(io_meta_find(m, "t.i16")->v.i, -10000);
    assert_int_equal(io_meta_find(m, "t.i32")->v.i, -1);
    assert_true(io_meta_find(m, "t.i64")->v.i == INT64_MIN);
    assert_int_equal(io_get_f64(m, "t.f32", -9, 9, &d, NULL), 0);
    assert_true(d == 1.5);
    assert_int_equal(io_get_f64(m, "t.f64", -9, 9, &d, NULL), 0);
    assert_true(d == -2.5);
    assert_int_equal(io_get_f64(m, "t.i8", -9, 9, &d, NULL), 0);
    assert_true(d == -2);
    assert_int_equal(io_get_bool(m, "t.bool", &yes, NULL), 0);
    assert_true(yes);
    assert_int_equal(io_get_str(m, "t.str", &s, &n, NULL), 0);
    assert_int_equal(n, 3);
    assert_memory_equal(s, "a\0b", 4);

    const struct io_value *a = io_meta_find(m, "t.strs");
    assert_int_equal(a->kind, IO_ARRAY);
    assert_int_equal(a->elem, IO_STR);
    assert_int_equal(a->gguf_type, 8);
    assert_int_equal(a->n, 3);
    assert_string_equal(io_array_str(a, 0, &n), "one");
    assert_string_equal(io_array_str(a, 1, &n), "");
    assert_memory_equal(io_array_str(a, 2, &n), "\0\xFF", 3);
    assert_int_equal(n, 2);
    assert_null(io_array_str(a, 3, &n));
    assert_int_equal(n, 0);
    a = io_meta_find(m, "t.i32s");
    assert_int_equal(io_array_i64(a, 0), -7);
    assert_int_equal(io_array_i64(a, 1), 9);
    assert_int_equal(io_array_i64(a, 2), 0);
    /* The wrong kind reads nothing: an array of bytes is no array of floats or strings. */
    assert_int_equal(io_array_u64(a, 0), 0);
    assert_true(io_array_f64(a, 0) == 0);
    assert_false(io_array_bool(a, 0));
    assert_null(io_array_str(a, 0, &n));
    a = io_meta_find(m, "t.f32s");
    assert_true(io_array_f64(a, 0) == 1 && io_array_f64(a, 1) == -2);
    a = io_meta_find(m, "t.bools");
    assert_true(io_array_bool(a, 0) && !io_array_bool(a, 1) && io_array_bool(a, 2));
    a = io_meta_find(m, "t.none");
    assert_int_equal(a->n, 0);
    assert_int_equal(io_array_u64(a, 0), 0);
    io_close(f);
    gb_free(&b);
}

static void a_gap_is_told(void **state)
{
    (void)state;
    struct gb b = {0};
    struct heard heard = {0};
    const struct report_sink sink = {.report = hear, .arg = &heard};
    struct io_file *f;
    gb_head(&b, 2, 0);
    gb_tensor1(&b, "t", 4, 0, 0);
    gb_tensor1(&b, "u", 4, 0, 96);
    gb_pad(&b, 32);
    gb_fill(&b, 0, 112);
    assert_int_equal(io_open_memory(&f, "m", b.at, b.n, &sink, NULL), INGLE_OK);
    assert_int_equal(heard.n, 1);
    assert_string_equal(heard.text, "80 bytes between tensors belong to none");
    io_close(f);
    gb_free(&b);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    struct gb b = {0};
    gb_good(&b);
    for (size_t n = 0; n < b.n; n++) {
        struct io_file *f = NULL;
        struct err err = {0};
        unsigned char *exact = malloc(n ? n : 1);
        assert_non_null(exact);
        memcpy(exact, b.at, n);
        assert_int_not_equal(io_open_memory(&f, "cut.gguf", exact, n, NULL, &err), INGLE_OK);
        assert_null(f);
        assert_non_null(strstr(err.msg, "cut.gguf: "));
        free(exact);
    }
    gb_free(&b);
}

/* Whatever one byte becomes, the reader ends, and what it accepts can be read. */
static void every_changed_byte_is_survived(void **state)
{
    (void)state;
    static const unsigned char values[] = {0, 1, 2, 7, 8, 9, 0x20, 0x7F, 0x80, 0xFE, 0xFF};
    struct gb b = {0};
    gb_good(&b);
    unsigned char *exact = malloc(b.n);
    assert_non_null(exact);
    for (size_t i = 0; i < b.n; i++)
        for (size_t k = 0; k < sizeof values; k++) {
            struct io_file *f;
            memcpy(exact, b.at, b.n);
            exact[i] = values[k];
            if (io_open_memory(&f, "m", exact, b.n, NULL, NULL))
                continue;
            for (size_t t = 0; t < io_n_tensors(f); t++) {
                const struct io_tensor *at = io_tensor_at(f, t);
                (void)quant_find_bad(at->type, io_mapped(f, at),
                                     at->n_bytes / quant_info(at->type)->n_bytes);
            }
            io_close(f);
        }
    free(exact);
    gb_free(&b);
}

static void getters_refuse_by_type_and_range(void **state)
{
    (void)state;
    struct gb b = {0};
    struct io_file *f;
    struct err err;
    gb_good(&b);
    assert_int_equal(io_open_memory(&f, "m.gguf", b.at, b.n, NULL, NULL), INGLE_OK);
    const struct io_meta *m = io_metadata(f);
    uint64_t u = 77, us[3] = {7, 7, 7};
    double d = 77, ds[3];
    bool yes, bs[4];
    const char *s;
    size_t n;
    assert_int_equal(io_get_u64(m, "t.u8", 0, 199, &u, &err), INGLE_FORMAT);
    assert_string_equal(err.msg, "m.gguf: key 't.u8' is 200 at [0], allowed is 0 to 199");
    assert_int_equal(io_get_u64(m, "t.i32", 0, 9, &u, &err), INGLE_FORMAT);
    assert_string_equal(err.msg, "m.gguf: key 't.i32' is -1 at [0], allowed is 0 to 9");
    assert_int_equal(io_get_u64(m, "t.f32", 0, 9, &u, &err), INGLE_FORMAT);
    assert_string_equal(err.msg, "m.gguf: key 't.f32' is a float where an integer is needed");
    assert_int_equal(io_get_u64(m, "t.bool", 0, 9, &u, &err), INGLE_FORMAT);
    assert_int_equal(io_get_u64(m, "t.strs", 0, 9, &u, &err), INGLE_FORMAT);
    assert_int_equal(io_get_u64(m, "t.no", 0, 9, &u, &err), INGLE_NOTFOUND);
    assert_string_equal(err.msg, "m.gguf: key 't.no' is missing");
    assert_int_equal(u, 77);
    assert_int_equal(io_get_f64(m, "t.f32", 0, 1, &d, &err), INGLE_FORMAT);
    assert_string_equal(err.msg, "m.gguf: key 't.f32' is 1.5 at [0], allowed is 0 to 1");
    assert_int_equal(io_get_f64(m, "t.str", 0, 1, &d, &err), INGLE_FORMAT);
    assert_true(d == 77);
    assert_int_equal(io_get_bool(m, "t.u8", &yes, &err), INGLE_FORMAT);
    assert_int_equal(io_get_bool(m, "t.bools", &yes, &err), INGLE_FORMAT);
    assert_int_equal(io_get_str(m, "t.u8", &s, &n, &err), INGLE_FORMAT);
    assert_string_equal(err.msg,
                        "m.gguf: key 't.u8' is an unsigned integer where a string is needed");

    /* A scalar is spread, an array must be long enough; nothing is written on failure. */
    assert_int_equal(io_get_u64s(m, "t.u8", 3, 0, 255, us, &err), INGLE_OK);
    assert_true(us[0] == 200 && us[2] == 200);
    assert_int_equal(io_get_u64s(m, "t.i32s", 2, 0, 9, us, &err), INGLE_FORMAT);
    assert_string_equal(err.msg, "m.gguf: key 't.i32s' is -7 at [0], allowed is 0 to 9");
    assert_int_equal(us[0], 200);
    assert_int_equal(io_get_u64s(m, "t.i32s", 3, 0, 9, us, &err), INGLE_FORMAT);
    assert_string_equal(err.msg, "m.gguf: key 't.i32s' has 2 elements, at least 3 are needed");
    assert_int_equal(io_get_u64s(m, "t.f32s", 2, 0, 9, us, &err), INGLE_FORMAT);
    assert_int_equal(io_get_f64s(m, "t.f32s", 2, -9, 9, ds, &err), INGLE_OK);
    assert_true(ds[0] == 1 && ds[1] == -2);
    assert_int_equal(io_get_f64s(m, "t.i32s", 2, -9, 9, ds, &err), INGLE_OK);
    assert_true(ds[0] == -7);
    assert_int_equal(io_get_f64s(m, "t.strs", 2, -9, 9, ds, &err), INGLE_FORMAT);
    assert_int_equal(io_get_bools(m, "t.bools", 3, bs, &err), INGLE_OK);
    assert_true(bs[0] && !bs[1] && bs[2]);
    assert_int_equal(io_get_bools(m, "t.bools", 4, bs, &err), INGLE_FORMAT);
    assert_int_equal(io_get_bools(m, "t.bool", 4, bs, &err), INGLE_OK);
    assert_int_equal(io_get_bools(m, "t.i32s", 1, bs, &err), INGLE_FORMAT);
    io_close(f);
    gb_free(&b);
}

static void metadata_can_be_made_by_hand(void **state)
{
    (void)state;
    struct io_meta *m = io_meta_create();
    struct err err;
    uint64_t u;
    char key[16];
    assert_non_null(m);
    assert_int_equal(io_meta_set_name(m, "config.json"), 0);
    for (uint64_t i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "k%03u", (unsigned)(i * 7 % 300));
        assert_int_equal(io_meta_set_u64(m, key, i), 0);
    }
    assert_int_equal(io_meta_set_u64(m, "k007", 1000), 0);
    assert_int_equal(io_meta_count(m), 300);
    assert_int_equal(io_get_u64(m, "k007", 0, 9999, &u, NULL), 0);
    assert_int_equal(u, 1000);
    assert_int_equal(io_get_u64(m, "k293", 0, 9999, &u, NULL), 0);
    assert_int_equal(u, 299);
    assert_int_equal(io_get_u64(m, "k300", 0, 9999, &u, &err), INGLE_NOTFOUND);
    assert_string_equal(err.msg, "config.json: key 'k300' is missing");

    const uint64_t us[2] = {5, 1ull << 40};
    const bool bs[2] = {true, false};
    double d;
    bool yes;
    const char *s;
    size_t n;
    assert_int_equal(io_meta_set_u64s(m, "us", us, 2), 0);
    assert_int_equal(io_meta_set_bools(m, "bs", bs, 2), 0);
    assert_int_equal(io_meta_set_f64(m, "d", 0.5), 0);
    assert_int_equal(io_meta_set_bool(m, "b", true), 0);
    assert_int_equal(io_meta_set_str(m, "s", "x\0y", 3), 0);
    assert_true(io_array_u64(io_meta_find(m, "us"), 1) == 1ull << 40);
    assert_true(io_array_bool(io_meta_find(m, "bs"), 0));
    assert_false(io_array_bool(io_meta_find(m, "bs"), 1));
    assert_int_equal(io_get_f64(m, "d", 0, 1, &d, NULL), 0);
    assert_true(d == 0.5);
    assert_int_equal(io_get_bool(m, "b", &yes, NULL), 0);
    assert_true(yes);
    assert_int_equal(io_get_str(m, "s", &s, &n, NULL), 0);
    assert_memory_equal(s, "x\0y", 4);
    assert_int_equal(n, 3);
    io_meta_free(m);
    io_meta_free(NULL);
}

static void one_budget_holds_for_all_copies(void **state)
{
    (void)state;
    struct io_arena a;
    struct err err;
    void *p;
    const char *s;
    io_arena_init(&a, 100000);
    assert_int_equal(io_arena_take(&a, 70000, &p, NULL), INGLE_OK);
    assert_int_equal(io_arena_copy(&a, "abc", 3, &s, NULL), INGLE_OK);
    assert_string_equal(s, "abc");
    assert_int_equal(io_arena_take(&a, 30000, &p, &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "30000 bytes more than the limit of 100000 bytes of metadata");
    assert_int_equal(io_arena_take(&a, SIZE_MAX - 3, &p, NULL), INGLE_LIMIT);
    assert_int_equal(io_arena_copy(&a, s, SIZE_MAX, &s, NULL), INGLE_LIMIT);
    assert_int_equal(io_arena_take(&a, 29992, &p, NULL), INGLE_OK);
    assert_int_equal(io_arena_take(&a, 1, &p, NULL), INGLE_LIMIT);
    io_arena_release(&a);
}

static void what_is_no_model_is_refused(void **state)
{
    (void)state;
    struct gb b = {0};
    struct io_file *f;
    struct err err;
    gb_bytes(&b,
             "\x7F"
             "ELF and more",
             12);
    gb_write(&b, path);
    assert_int_equal(io_open(&f, path, NULL, &err), INGLE_FORMAT);
    assert_non_null(strstr(err.msg, "begins with 7f 45 4c 46, which is neither GGUF"));
    b.n = 3;
    gb_write(&b, path);
    assert_int_equal(io_open(&f, path, NULL, &err), INGLE_FORMAT);
    assert_non_null(strstr(err.msg, "has 3 bytes"));
    gb_free(&b);
    char none[128];
    snprintf(none, sizeof none, "%s/none/at/all.gguf", dir);
    assert_int_equal(io_open(&f, none, NULL, &err), INGLE_NOTFOUND);
    assert_non_null(strstr(err.msg, none));
    io_close(NULL);
}

/* A time of change that nothing explains: the bytes may be others, whatever their time of
 * modification is. */
static void what_may_have_changed(void **state)
{
    (void)state;
    struct gb b = {0};
    struct io_stamp was;
    struct stat st;
    struct io_file *f = open_good(&b);
    assert_true(io_stamp(f, 0, &was) && io_is_as(f, 0, &was) && stat(path, &st) == 0);
    usleep(20000); /* a tick of the file system's clock */
    assert_true(chmod(path, 0400) == 0 && io_is_as(f, 0, &was));
    assert_true(chmod(path, st.st_mode & 0777) == 0);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[2]){st.st_atim, st.st_mtim}, 0), 0);
    assert_false(io_is_as(f, 0, &was));
    assert_true(unlink(path) == 0 && io_is_as(f, 0, &was));
    io_close(f);
    gb_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file_says_what_it_holds),
        cmocka_unit_test(metadata_has_its_types),
        cmocka_unit_test(a_gap_is_told),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_changed_byte_is_survived),
        cmocka_unit_test(getters_refuse_by_type_and_range),
        cmocka_unit_test(metadata_can_be_made_by_hand),
        cmocka_unit_test(one_budget_holds_for_all_copies),
        cmocka_unit_test(what_is_no_model_is_refused),
        cmocka_unit_test(what_may_have_changed),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
