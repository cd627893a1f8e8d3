/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "unit/unit.h"

#include "base/file.h"
#include "base/output.h"
#include "base/mem.h"
#include "base/str.h"
#include "gguf_build.h"
#include "io/io.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/ingle-st-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static const char *in_dir(const char *name)
{
    static char path[4][128];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static int drop_dir(void **state)
{
    (void)state;
    static const char *const left[] = {"t.safetensors",
                                       "model.safetensors",
                                       "a.safetensors",
                                       "b.safetensors",
                                       "model.safetensors.index.json",
                                       "config.json"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        unlink(in_dir(left[i]));
    return rmdir(dir);
}

/* A file with this header text and n_data bytes 0, 1, 2, ... behind it. */
static void write_st(const char *name, const char *header, size_t n_data)
{
    struct gb b = {0};
    gb_str(&b, header);
    for (size_t i = 0; i < n_data; i++)
        gb_u8(&b, (uint8_t)i);
    gb_write(&b, in_dir(name));
    gb_free(&b);
}

static void write_text(const char *name, const char *text)
{
    assert_int_equal(unit_write(in_dir(name), text, strlen(text), NULL), INGLE_OK);
}

static void refuses(const char *name, ingle_status status, const char *says)
{
    struct io_file *f = NULL;
    struct err err = {0};
    const ingle_status s = io_open(&f, in_dir(name), NULL, &err);
    if (s != status || !strstr(err.msg, says))
        fail_msg("wanted '%s', status %d: %s", says, (int)s, err.msg);
    assert_non_null(strstr(err.msg, dir));
    assert_null(f);
}

static void a_good_file_says_what_it_holds(void **state)
{
    (void)state;
    struct io_file *f;
    struct err err;
    write_st(
        "t.safetensors",
        "{\"b\":{\"dtype\":\"I16\",\"shape\":[2,3],\"data_offsets\":[5,17]},"
        "\"__metadata__\":{\"format\":\"pt\",\"note\":\"a\\u0000b\"},"
        "\"scalar\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[0,1]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[5,5]},"
        "\"a \\u00e9\":{\"data_offsets\":[1,5],\"shape\":[1,1,1,1,1,1,1,1],\"dtype\":\"U32\"}}   ",
        17);
    if (io_open(&f, in_dir("t.safetensors"), NULL, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(io_kind(f), IO_SAFETENSORS);
    assert_int_equal(io_n_tensors(f), 4);
    const struct io_tensor *t = io_tensor_find(f, "b");
    assert_int_equal(t->type, QUANT_I16);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->ne[0], 3); /* the contiguous one is the last of the shape */
    assert_int_equal(t->ne[1], 2);
    assert_int_equal(t->ne[2], 1);
    unsigned char bytes[12];
    assert_int_equal(io_read(f, t, 0, bytes, 12, NULL), INGLE_OK);
    assert_int_equal(bytes[0], 5);
    assert_int_equal(bytes[11], 16);
    assert_memory_equal(io_mapped(f, t), bytes, 12);
    t = io_tensor_find(f, "scalar");
    assert_int_equal(t->n_dims, 0);
    assert_int_equal(t->ne[0], 1);
    assert_int_equal(t->n_bytes, 1);
    t = io_tensor_find(f, "none");
    assert_int_equal(t->n_bytes, 0);
    assert_int_equal(t->ne[0], 0);
    assert_int_equal(io_read(f, t, 0, bytes, 0, NULL), INGLE_OK);
    t = io_tensor_find(f, "a \xC3\xA9");
    assert_int_equal(t->type, QUANT_I32);
    assert_int_equal(t->n_dims, 8);
    const char *s;
    size_t n;
    assert_int_equal(io_get_str(io_metadata(f), "note", &s, &n, NULL), INGLE_OK);
    assert_memory_equal(s, "a\0b", 4);
    assert_int_equal(n, 3);
    io_close(f);
    write_st("t.safetensors", "{}", 0);
    assert_int_equal(io_open(&f, in_dir("t.safetensors"), NULL, NULL), INGLE_OK);
    assert_int_equal(io_n_tensors(f), 0);
    io_close(f);
}

static void dtypes_map_to_types(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t type, n;
    } d[] = {
        {"F32", QUANT_F32, 4},      {"F16", QUANT_F16, 2},
        {"BF16", QUANT_BF16, 2},    {"F64", QUANT_F64, 8},
        {"I8", QUANT_I8, 1},        {"I16", QUANT_I16, 2},
        {"I32", QUANT_I32, 4},      {"I64", QUANT_I64, 8},
        {"U8", QUANT_U8, 1},        {"BOOL", QUANT_BOOL, 1},
        {"U16", QUANT_I16, 2},      {"U32", QUANT_I32, 4},
        {"U64", QUANT_I64, 8},      {"F8_E4M3", QUANT_FP8_E4M3, 1},
        {"F8_E8M0", QUANT_E8M0, 1},
    };
    for (size_t i = 0; i < sizeof d / sizeof *d; i++) {
        char header[128];
        struct io_file *f;
        struct err err;
        snprintf(header, sizeof header,
                 "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%u]}}", d[i].name,
                 3 * d[i].n);
        write_st("t.safetensors", header, 3 * d[i].n);
        if (io_open(&f, in_dir("t.safetensors"), NULL, &err))
            fail_msg("%s", err.msg);
        assert_int_equal(io_tensor_at(f, 0)->type, d[i].type);
        io_close(f);
    }
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct {
    const char *header;
    size_t n_data;
    ingle_status status;
    const char *says;
} refused[] = {
    {"", 0, INGLE_FORMAT, "the header is no JSON object"},
    {"   ", 0, INGLE_FORMAT, "the header is no JSON object"},
    {" {}", 0, INGLE_FORMAT, "the header is no JSON object"},
    {"{}\n", 0, INGLE_FORMAT, "the header is no JSON object with spaces after it"},
    {"{} x", 0, INGLE_FORMAT, "the header is no JSON object"},
    {"{}{}", 0, INGLE_FORMAT, "header: json: something after the value at byte 2"},
    {"[]", 0, INGLE_FORMAT, "the header is no JSON object"},
    {"{\"t\":1}", 0, INGLE_FORMAT, "tensor 't' must have dtype, shape and data_offsets"},
    {"{\"t\":null}", 0, INGLE_FORMAT, "tensor 't' must have"},
    {"{\"t\":{}}", 0, INGLE_FORMAT, "tensor 't' must have"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, INGLE_FORMAT, "tensor 't' must have"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, INGLE_FORMAT,
     "nothing else"},
    {T("\"F32\"", "[1]", "[0,4]") "x", 4, INGLE_FORMAT, "the header is no JSON object"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, INGLE_FORMAT, "header: json: duplicate key 't'"},
    {"{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     INGLE_FORMAT, "duplicate key 'dtype'"},
    {T("3", "[1]", "[0,4]"), 4, INGLE_FORMAT, "tensor 't': dtype is no string"},
    {T("\"F4\"", "[2]", "[0,1]"), 1, INGLE_UNSUP, "tensor 't': dtype 'F4' is not read"},
    {T("\"F6_E2M3\"", "[4]", "[0,3]"), 3, INGLE_UNSUP, "dtype 'F6_E2M3'"},
    {T("\"F8_E5M2\"", "[1]", "[0,1]"), 1, INGLE_UNSUP, "dtype 'F8_E5M2'"},
    {T("\"F8_E4M3FNUZ\"", "[1]", "[0,1]"), 1, INGLE_UNSUP, "dtype 'F8_E4M3FNUZ'"},
    {T("\"C64\"", "[1]", "[0,8]"), 8, INGLE_UNSUP, "dtype 'C64'"},
    {T("\"f32\"", "[1]", "[0,4]"), 4, INGLE_UNSUP, "dtype 'f32'"},
    {T("\"F32\\u0007\"", "[1]", "[0,4]"), 4, INGLE_UNSUP, "dtype 'F32?'"},
    {T("\"F32\"", "1", "[0,4]"), 4, INGLE_FORMAT, "tensor 't': shape is no array"},
    {T("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, INGLE_LIMIT,
     "shape has 9 dimensions, the limit is 8"},
    {T("\"F32\"", "[-1]", "[0,4]"), 4, INGLE_FORMAT, "a dimension of shape is -1, allowed is 0 to"},
    {T("\"F32\"", "[1.0]", "[0,4]"), 4, INGLE_FORMAT, "a dimension of shape is no plain integer"},
    {T("\"F32\"", "[1e0]", "[0,4]"), 4, INGLE_FORMAT, "a dimension of shape is no plain integer"},
    {T("\"F32\"", "[\"1\"]", "[0,4]"), 4, INGLE_FORMAT, "a dimension of shape is no plain integer"},
    {T("\"F32\"", "[null]", "[0,4]"), 4, INGLE_FORMAT, "a dimension of shape is no plain integer"},
    {T("\"F32\"", "[9007199254740993]", "[0,4]"), 4, INGLE_FORMAT,
     "a dimension of shape is 9007199254740993, allowed is 0 to 9007199254740992"},
    {T("\"F32\"", "[99999999999999999999999]", "[0,4]"), 4, INGLE_FORMAT,
     "shape is no plain integer"},
    {T("\"F32\"", "[9007199254740992,9007199254740992]", "[0,4]"), 4, INGLE_LIMIT,
     "more than 2^64 elements"},
    {T("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4, INGLE_LIMIT, "more than 2^64 elements"},
    {T("\"F32\"", "[9007199254740992,1024]", "[0,4]"), 4, INGLE_FORMAT,
     "data_offsets spans 4 bytes, but 9223372036854775808 elements of F32"},
    {T("\"F32\"", "[1]", "{}"), 4, INGLE_FORMAT, "data_offsets is no pair"},
    {T("\"F32\"", "[1]", "[0]"), 4, INGLE_FORMAT, "data_offsets is no pair"},
    {T("\"F32\"", "[1]", "[0,4,8]"), 4, INGLE_FORMAT, "data_offsets is no pair"},
    {T("\"F32\"", "[1]", "[-4,0]"), 4, INGLE_FORMAT, "data_offsets[0] is -4"},
    {T("\"F32\"", "[1]", "[0,4.0]"), 4, INGLE_FORMAT, "data_offsets[1] is no plain integer"},
    {T("\"F32\"", "[1]", "[4,0]"), 4, INGLE_FORMAT, "data_offsets is 4 to 0, the data has 4 bytes"},
    {T("\"F32\"", "[1]", "[0,8]"), 4, INGLE_FORMAT, "data_offsets is 0 to 8, the data has 4 bytes"},
    {T("\"F32\"", "[1]", "[0,18446744073709551615]"), 4, INGLE_FORMAT, "data_offsets[1] is"},
    {T("\"F32\"", "[2]", "[0,4]"), 4, INGLE_FORMAT, "spans 4 bytes, but 2 elements of F32 need 8"},
    {T("\"F32\"", "[]", "[0,8]"), 8, INGLE_FORMAT, "spans 8 bytes, but 1 elements of F32 need 4"},
    {T("\"F32\"", "[1]", "[0,4]"), 5, INGLE_FORMAT,
     "the last tensor ends at 4, but the data has 5 bytes"},
    {T("\"F32\"", "[1]", "[1,5]"), 5, INGLE_FORMAT,
     "tensor 't' begins at 1, but the one before it ends at 0"},
    {"{}", 1, INGLE_FORMAT, "the last tensor ends at 0, but the data has 1 bytes"},
    {"{\"t\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"u\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
     7, INGLE_FORMAT, "tensor 'u' begins at 3, but the one before it ends at 4"},
    {"{\"t\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"u\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[5,9]}}",
     9, INGLE_FORMAT, "tensor 'u' begins at 5, but the one before it ends at 4"},
    {"{\"t\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"u\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
     4, INGLE_FORMAT, "tensor 'u' begins at 2, but the one before it ends at 4"},
    {"{\"\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, INGLE_LIMIT,
     "tensor name '' has 0 bytes, allowed is 1 to 512"},
    {"{\"a\\u0000b\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, INGLE_FORMAT,
     "a NUL in a key"},
    {"{\"a\xFF\":1}", 0, INGLE_FORMAT, "ill-formed UTF-8"},
    {"{\"t\\x\":1}", 0, INGLE_FORMAT, "unknown escape"},
    {"{\"t\":[[[[1]]]]}", 0, INGLE_LIMIT, "nesting of 5"},
    {"{\"__metadata__\":[]}", 0, INGLE_FORMAT, "__metadata__ is no object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, INGLE_FORMAT, "__metadata__ 'a' is no string"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, INGLE_FORMAT, "duplicate key 'a'"},
};

static void malformed_files_are_refused_with_their_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        write_st("t.safetensors", refused[i].header, refused[i].n_data);
        refuses("t.safetensors", refused[i].status, refused[i].says);
    }
}

static void long_names_are_refused(void **state)
{
    (void)state;
    for (int n = 512; n <= 513; n++) {
        struct str s;
        struct io_file *f;
        str_init(&s);
        str_adds(&s, "{\"");
        for (int i = 0; i < n; i++)
            str_addc(&s, 'n');
        str_adds(&s, "\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
        write_st("t.safetensors", s.at, 0);
        if (n == 512) {
            assert_int_equal(io_open(&f, in_dir("t.safetensors"), NULL, NULL), INGLE_OK);
            io_close(f);
        } else {
            refuses("t.safetensors", INGLE_LIMIT, "has 513 bytes, allowed is 1 to 512");
        }
        str_release(&s);
    }
}

static void header_lengths_are_checked(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3,         100000001,  1ull << 32,
                                       INT64_MAX, UINT64_MAX, (uint64_t)-8};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct gb b = {0};
        gb_u64(&b, lengths[i]);
        gb_bytes(&b, "{}", 2);
        gb_write(&b, in_dir("t.safetensors"));
        gb_free(&b);
        refuses("t.safetensors", INGLE_FORMAT, "the limit is 100000000 and the file's 10 bytes");
    }
    write_text("t.safetensors", "\2\0\0\0\0\0\0");
    refuses("t.safetensors", INGLE_FORMAT, "no model is that small");
    struct gb b = {0};
    gb_fill(&b, 0, 7);
    gb_write(&b, in_dir("t.safetensors"));
    gb_free(&b);
    refuses("t.safetensors", INGLE_FORMAT, "has 7 bytes, a header length needs 8");
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    struct gb b = {0};
    gb_str(&b, T("\"F32\"", "[1,2]", "[0,8]") "  ");
    gb_fill(&b, 1, 8);
    const size_t all = b.n;
    for (b.n = 0; b.n < all; b.n++) {
        struct io_file *f = NULL;
        struct err err = {0};
        gb_write(&b, in_dir("t.safetensors"));
        assert_int_not_equal(io_open(&f, in_dir("t.safetensors"), NULL, &err), INGLE_OK);
        assert_non_null(strstr(err.msg, "t.safetensors: "));
        assert_null(f);
    }
    gb_free(&b);
}

/* ---- directories ---- */

#define ONE(name) "{\"" name "\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}"
#define INDEX     "model.safetensors.index.json"

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

static void directories_hold_one_model(void **state)
{
    (void)state;
    struct io_file *f;
    struct err err;
    unlink(in_dir("model.safetensors"));
    refuses("", INGLE_NOTFOUND, "has neither model.safetensors nor model.safetensors.index.json");
    write_st("a.safetensors", ONE("t.a"), 2);
    write_st("b.safetensors", ONE("t.b"), 2);
    write_text(INDEX, "{\"metadata\":{\"total_size\":4},\"weight_map\":{\"t.b\":\"b.safetensors\","
                      "\"t.a\":\"a.safetensors\"}}");
    write_text("config.json", "{\"x\":1}");
    if (io_open(&f, dir, NULL, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(io_n_tensors(f), 2);
    const struct io_tensor *t = io_tensor_find(f, "t.b");
    unsigned char bytes[2];
    assert_int_equal(t->file, 1);
    assert_int_equal(io_read(f, t, 0, bytes, 2, NULL), INGLE_OK);
    assert_memory_equal(bytes, "\0\1", 2);
    char *text;
    size_t n;
    assert_int_equal(io_side_file(f, "config.json", 100, &text, &n, NULL), INGLE_OK);
    assert_string_equal(text, "{\"x\":1}");
    mem_free(text);
    assert_int_equal(io_side_file(f, "config.json", 6, &text, &n, &err), INGLE_LIMIT);
    assert_int_equal(io_side_file(f, "other.json", 6, &text, &n, &err), INGLE_NOTFOUND);
    io_close(f);

    /* A single file goes before an index, and finds its side files, too. */
    write_st("model.safetensors", ONE("t.single"), 2);
    assert_int_equal(io_open(&f, dir, NULL, NULL), INGLE_OK);
    assert_non_null(io_tensor_find(f, "t.single"));
    io_close(f);
    assert_int_equal(io_open(&f, in_dir("model.safetensors"), NULL, NULL), INGLE_OK);
    assert_int_equal(io_side_file(f, "config.json", 100, &text, &n, NULL), INGLE_OK);
    mem_free(text);
    io_close(f);
    unlink(in_dir("model.safetensors"));
}

static void shards_must_agree_with_their_index(void **state)
{
    (void)state;
    struct io_file *f;
    struct heard heard = {0};
    const struct report_sink sink = {.report = hear, .arg = &heard};
    unlink(in_dir("model.safetensors"));
    write_st("a.safetensors", ONE("t.a"), 2);
    write_st("b.safetensors", ONE("t.b"), 2);
    write_text(INDEX, "{\"weight_map\":{\"t.a\":\"a.safetensors\",\"t.c\":\"b.safetensors\"}}");
    refuses("", INGLE_FORMAT, "tensor 't.c' is mapped to 'b.safetensors' but is not in it");
    write_text(INDEX, "{\"weight_map\":{\"t.a\":\"b.safetensors\",\"t.b\":\"a.safetensors\"}}");
    refuses("", INGLE_FORMAT, "is mapped to 'b.safetensors' but is not in it");
    write_text(INDEX, "{\"weight_map\":{\"t.a\":\"a.safetensors\",\"t.c\":\"c.safetensors\"}}");
    refuses("", INGLE_NOTFOUND, "c.safetensors: cannot open");
    write_st("b.safetensors", ONE("t.a"), 2);
    write_text(INDEX, "{\"weight_map\":{\"t.a\":\"a.safetensors\",\"t.b\":\"b.safetensors\"}}");
    refuses("", INGLE_FORMAT, "tensor 't.a' is there twice");
    write_st("b.safetensors",
             "{\"t.b\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},"
             "\"t.more\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
             3);
    assert_int_equal(io_open(&f, dir, &sink, NULL), INGLE_OK);
    assert_int_equal(heard.n, 1);
    assert_string_equal(heard.text, "1 of 3 tensors are not in weight_map");
    assert_non_null(io_tensor_find(f, "t.more"));
    io_close(f);
    write_st("b.safetensors", ONE("t.b"), 3);
    refuses("", INGLE_FORMAT, "b.safetensors: the last tensor ends at 2");
}

static void an_index_cannot_point_elsewhere(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "/etc/a.safetensors",
        "../a.safetensors",
        "x/a.safetensors",
        "..\\\\a.safetensors",
        "a.safetensors\\u0000",
        "a\\u0000.safetensors",
        ".safetensors",
        "..safetensors",
        "",
        "a.bin",
        "a.safetensors/",
        "./a.safetensors",
    };
    unlink(in_dir("model.safetensors"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"weight_map\":{\"t\":\"%s\"}}", bad[i]);
        write_text(INDEX, text);
        refuses("", INGLE_FORMAT, "which is no plain '.safetensors' file name");
    }
    write_text(INDEX, "{\"weight_map\":{\"t\":1}}");
    refuses("", INGLE_FORMAT, "tensor 't' is mapped to ''");
    write_text(INDEX, "{\"weight_map\":{}}");
    refuses("", INGLE_LIMIT, "weight_map names 0 files, allowed is 1 to 1024");
    write_text(INDEX, "{\"weight_map\":[]}");
    refuses("", INGLE_FORMAT, "'weight_map' is no object");
    write_text(INDEX, "{}");
    refuses("", INGLE_FORMAT, "'weight_map' is no object");
    write_text(INDEX, "[]");
    refuses("", INGLE_FORMAT, "'weight_map' is no object");
    write_text(INDEX, "{\"weight_map\":{\"t\":\"a.safetensors\",\"t\":\"b.safetensors\"}}");
    refuses("", INGLE_FORMAT, "index.json: json: duplicate key 't'");
    write_text(INDEX, "{\"weight_map\":{");
    refuses("", INGLE_FORMAT, "index.json: json: ");
    struct str s;
    str_init(&s);
    str_adds(&s, "{\"weight_map\":{");
    for (int i = 0; i < 1025; i++)
        str_addf(&s, "%s\"t%d\":\"s%d.safetensors\"", i ? "," : "", i, i);
    str_adds(&s, "}}");
    write_text(INDEX, s.at);
    refuses("", INGLE_LIMIT, "weight_map names 1025 files, allowed is 1 to 1024");
    str_release(&s);
    assert_int_equal(truncate(in_dir(INDEX), (64 << 20) + 1), 0);
    refuses("", INGLE_LIMIT, "has 67108865 bytes, the limit is 67108864");
    unlink(in_dir(INDEX));
}

/* ---- the writer ---- */

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct io_writer *w;
    struct io_file *f;
    struct err err;
    const float a[6] = {1, 2, 3, 4, 5, 6};
    const uint8_t b[3] = {7, 8, 9};
    const uint64_t shape[2] = {2, 3}, three = 3, none = 0;
    assert_int_equal(io_writer_create(&w, in_dir("t.safetensors"), OUTPUT_ANY, &err), INGLE_OK);
    assert_int_equal(io_writer_add(w, "odd", QUANT_FP8_E4M3, 1, &three, b, 3, &err), INGLE_OK);
    assert_int_equal(io_writer_add(w, "a \"q\" \xC3\xA9", QUANT_F32, 2, shape, a, sizeof a, &err),
                     INGLE_OK);
    assert_int_equal(io_writer_add(w, "scalar", QUANT_U8, 0, NULL, b, 1, &err), INGLE_OK);
    assert_int_equal(io_writer_add(w, "empty", QUANT_BF16, 1, &none, NULL, 0, &err), INGLE_OK);
    assert_int_equal(io_writer_close(w, &err), INGLE_OK);
    if (io_open(&f, in_dir("t.safetensors"), NULL, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(io_n_tensors(f), 4);
    const struct io_tensor *t = io_tensor_find(f, "a \"q\" \xC3\xA9");
    assert_int_equal(t->ne[0], 3);
    assert_int_equal(t->ne[1], 2);
    assert_memory_equal(io_mapped(f, t), a, sizeof a);
    t = io_tensor_find(f, "odd");
    assert_int_equal(t->type, QUANT_FP8_E4M3);
    assert_int_equal(t->offset % 8, 0);
    assert_memory_equal(io_mapped(f, t), b, 3);
    io_close(f);
    assert_int_equal(io_writer_create(&w, in_dir("t.safetensors"), OUTPUT_ANY, &err), INGLE_OK);
    assert_int_equal(io_writer_close(w, &err), INGLE_OK);
    assert_int_equal(io_open(&f, in_dir("t.safetensors"), NULL, &err), INGLE_OK);
    io_close(f);
}

static void the_writer_refuses_what_no_file_may_hold(void **state)
{
    (void)state;
    struct io_writer *w;
    struct err err;
    const float a[6] = {0};
    const uint64_t shape[9] = {2, 3, 1, 1, 1, 1, 1, 1, 1}, huge[2] = {1ull << 40, 1ull << 40};
    char name[514];
    memset(name, 'n', 513);
    name[513] = 0;
    assert_int_equal(io_writer_create(&w, in_dir("none/t.safetensors"), OUTPUT_ANY, &err),
                     INGLE_OK);
    assert_int_equal(io_writer_add(w, "a", QUANT_F32, 2, shape, a, sizeof a, &err), INGLE_OK);
    assert_int_equal(io_writer_add(w, "a", QUANT_F32, 2, shape, a, sizeof a, &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "tensor 'a' is there twice"));
    assert_int_equal(io_writer_add(w, "b", QUANT_F32, 2, shape, a, 20, &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "tensor 'b' needs 24 bytes and got 20"));
    assert_int_equal(io_writer_add(w, "b", QUANT_F32, 2, huge, a, 24, &err), INGLE_ARG);
    assert_int_equal(io_writer_add(w, "b", QUANT_F32, 9, shape, a, 24, &err), INGLE_ARG);
    assert_int_equal(io_writer_add(w, "b", QUANT_Q8_0, 2, shape, a, 24, &err), INGLE_UNSUP);
    assert_non_null(strstr(err.msg, "type Q8_0 cannot be in safetensors"));
    assert_int_equal(io_writer_add(w, "b", 77, 2, shape, a, 24, &err), INGLE_UNSUP);
    assert_int_equal(io_writer_add(w, "", QUANT_F32, 2, shape, a, 24, &err), INGLE_ARG);
    assert_int_equal(io_writer_add(w, "\xFF", QUANT_F32, 2, shape, a, 24, &err), INGLE_ARG);
    assert_int_equal(io_writer_add(w, name, QUANT_F32, 2, shape, a, 24, &err), INGLE_ARG);
    assert_int_equal(io_writer_close(w, &err), INGLE_NOTFOUND); /* no such directory */
    assert_non_null(strstr(err.msg, "/none: no such directory"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file_says_what_it_holds),
        cmocka_unit_test(dtypes_map_to_types),
        cmocka_unit_test(malformed_files_are_refused_with_their_field),
        cmocka_unit_test(long_names_are_refused),
        cmocka_unit_test(header_lengths_are_checked),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(directories_hold_one_model),
        cmocka_unit_test(shards_must_agree_with_their_index),
        cmocka_unit_test(an_index_cannot_point_elsewhere),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(the_writer_refuses_what_no_file_may_hold),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
