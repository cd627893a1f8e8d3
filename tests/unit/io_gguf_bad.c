/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files that break a rule, one function each, and files just within the rules. */
#define _POSIX_C_SOURCE 200809L
#include "unit/unit.h"

#include "gguf_build.h"
#include "io/io.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Opens exactly these bytes from memory (a block of their size, so that a read beyond is
 * seen) and from a file; both must end alike. */
static ingle_status open_both(const struct gb *b, struct io_file **out, struct err *err)
{
    struct io_file *f = NULL;
    struct err other = {0};
    unsigned char *exact = malloc(b->n ? b->n : 1);
    assert_non_null(exact);
    memcpy(exact, b->at, b->n);
    *err = (struct err){0};
    ingle_status s = io_open_memory(&f, "mem.gguf", exact, b->n, NULL, err);
    if (!s)
        io_close(f);
    else
        assert_non_null(strstr(err->msg, "mem.gguf"));
    free(exact);
    gb_write(b, path);
    ingle_status s2 = io_open(out, path, NULL, &other);
    if (b->n >= 4 && memcmp(b->at, "GGUF", 4) == 0) {
        assert_int_equal(s, s2);
        if (s) {
            assert_non_null(strstr(other.msg, path));
            assert_string_equal(strstr(err->msg, ".gguf") + 5, strstr(other.msg, ".gguf") + 5);
        }
    }
    return s2;
}

typedef void build_fn(struct gb *b);

/* One line a file. */
/* clang-format off */

static void v_magic(struct gb *b) { gb_good(b); b->at[3] = 'G'; }
static void v_0(struct gb *b) { gb_good(b); b->at[4] = 0; }
static void v_1(struct gb *b) { gb_good(b); b->at[4] = 1; }
static void v_4(struct gb *b) { gb_good(b); b->at[4] = 4; }
static void v_big_endian(struct gb *b) { gb_good(b); memcpy(b->at + 4, "\0\0\0\3", 4); }

static void n_kv_limit(struct gb *b) { gb_head(b, 0, 65537); gb_fill(b, 0, 65537 * 13); }
static void n_kv_left(struct gb *b) { gb_head(b, 0, 5); gb_fill(b, 0, 64); }
static void n_kv_huge(struct gb *b) { gb_head(b, 0, 1ull << 60); gb_fill(b, 0, 64); }
static void n_kv_max(struct gb *b) { gb_head(b, 0, UINT64_MAX); gb_fill(b, 0, 64); }
static void n_kv_more_than_there(struct gb *b)
{
    gb_head(b, 0, 2);
    gb_kv_u32(b, "only.one", 1);
    gb_fill(b, 0, 3);
}
static void n_tensors_limit(struct gb *b) { gb_head(b, 262145, 0); gb_fill(b, 0, 262145 * 32); }
static void n_tensors_left(struct gb *b) { gb_head(b, 2, 0); gb_fill(b, 0, 63); }
static void n_tensors_huge(struct gb *b) { gb_head(b, 1ull << 58, 0); gb_fill(b, 0, 64); }
static void n_tensors_negative(struct gb *b) { gb_head(b, (uint64_t)-1, 0); gb_fill(b, 0, 64); }

static void key_of(struct gb *b, const char *key, size_t n)
{
    gb_head(b, 0, 1);
    gb_strn(b, key, n);
    gb_u32(b, 4);
    gb_u32(b, 1);
    gb_fill(b, 0, 32);
}
static void key_empty(struct gb *b) { key_of(b, "", 0); }
static void key_space(struct gb *b) { key_of(b, "a b", 3); }
static void key_del(struct gb *b) { key_of(b, "a\x7F", 2); }
static void key_high(struct gb *b) { key_of(b, "\xC3\xA9", 2); }
static void key_nul(struct gb *b) { key_of(b, "a\0b", 3); }
static void key_long(struct gb *b)
{
    char key[1025];
    memset(key, 'k', sizeof key);
    key_of(b, key, sizeof key);
}
static void key_huge(struct gb *b) { gb_head(b, 0, 1); gb_u64(b, 1ull << 63); gb_fill(b, 'k', 32); }

static void type_13(struct gb *b) { gb_head(b, 0, 1); gb_key(b, "k", 13); gb_u64(b, 1); }
static void type_max(struct gb *b) { gb_head(b, 0, 1); gb_key(b, "k", UINT32_MAX); gb_u64(b, 1); }
static void bool_2(struct gb *b)
{
    gb_head(b, 0, 1);
    gb_key(b, "k", 7);
    gb_u8(b, 2);
    gb_fill(b, 0, 9);
}
static void bools_255(struct gb *b)
{
    gb_head(b, 0, 1);
    gb_array(b, "k", 7, 3);
    gb_bytes(b, "\1\0\xFF", 3);
}

static void string_len(struct gb *b, uint64_t len)
{
    gb_head(b, 0, 1);
    gb_key(b, "k", 8);
    gb_u64(b, len);
    gb_fill(b, 'x', 32);
}
static void string_past_end(struct gb *b) { string_len(b, 33); }
static void string_int32(struct gb *b) { string_len(b, 1ull << 31); }
static void string_wraps_32(struct gb *b) { string_len(b, (1ull << 32) + 1); }
static void string_limit(struct gb *b) { string_len(b, (64 << 20) + 1); gb_fill(b, 'x', 64 << 20); }
static void string_max(struct gb *b) { string_len(b, UINT64_MAX); }
static void string_wraps_pos(struct gb *b) { string_len(b, (uint64_t)-32); }

static void array_of(struct gb *b, uint32_t elem, uint64_t n, size_t fill)
{
    gb_head(b, 0, 1);
    gb_array(b, "k", elem, n);
    gb_fill(b, 0, fill);
}
static void array_left(struct gb *b) { array_of(b, 4, 9, 35); }
static void array_left_u8(struct gb *b) { array_of(b, 0, 33, 32); }
static void array_limit(struct gb *b) { array_of(b, 0, (1 << 26) + 1, (1 << 26) + 1); }
static void array_wraps(struct gb *b) { array_of(b, 10, 1ull << 61, 64); }
static void array_2_60(struct gb *b) { array_of(b, 8, 1ull << 60, 64); }
static void array_strings_left(struct gb *b) { array_of(b, 8, 5, 39); }
static void array_unknown_elem(struct gb *b) { array_of(b, 13, 1ull << 40, 64); }
static void array_nested(struct gb *b) { array_of(b, 9, 1, 64); }
static void array_string_past_end(struct gb *b)
{
    array_of(b, 8, 2, 8);
    gb_u64(b, 9);
    gb_fill(b, 'x', 8);
}

static void duplicate_keys(struct gb *b)
{
    gb_head(b, 0, 3);
    gb_kv_u32(b, "k.one", 1);
    gb_kv_u32(b, "k.two", 1);
    gb_kv_str(b, "k.one", "1");
}

static void aligned(struct gb *b, uint32_t alignment)
{
    gb_head(b, 1, 1);
    gb_kv_u32(b, "general.alignment", alignment);
    gb_tensor1(b, "t", 4, 0, 0);
    gb_pad(b, 8);
    gb_fill(b, 0, 16);
}
static void alignment_0(struct gb *b) { aligned(b, 0); }
static void alignment_4(struct gb *b) { aligned(b, 4); }
static void alignment_24(struct gb *b) { aligned(b, 24); }
static void alignment_2m(struct gb *b) { aligned(b, 2 << 20); }
static void alignment_max(struct gb *b) { aligned(b, 1u << 31); }
static void alignment_type(struct gb *b, uint32_t type)
{
    gb_head(b, 1, 1);
    gb_key(b, "general.alignment", type);
    gb_u64(b, type == 5 ? 0xFFFFFFE0 : 2);
    gb_fill(b, 'x', 64);
}
static void alignment_string(struct gb *b) { alignment_type(b, 8); }
static void alignment_float(struct gb *b) { alignment_type(b, 12); }
static void alignment_negative(struct gb *b)
{
    gb_head(b, 0, 1);
    gb_key(b, "general.alignment", 5);
    gb_u32(b, (uint32_t)-32);
}
static void alignment_array(struct gb *b)
{
    gb_head(b, 0, 1);
    gb_array(b, "general.alignment", 4, 1);
    gb_u32(b, 32);
}

static void name_of(struct gb *b, const char *name, size_t n)
{
    gb_head(b, 1, 0);
    gb_strn(b, name, n);
    gb_u32(b, 1);
    gb_u64(b, 4);
    gb_u32(b, 0);
    gb_u64(b, 0);
    gb_pad(b, 32);
    gb_fill(b, 0, 32);
}
static void name_empty(struct gb *b) { name_of(b, "", 0); }
static void name_nul(struct gb *b) { name_of(b, "a\0", 2); }
static void name_newline(struct gb *b) { name_of(b, "a\nb", 3); }
static void name_high(struct gb *b) { name_of(b, "a\xFF", 2); }
static void name_long(struct gb *b)
{
    char name[128];
    memset(name, 'n', sizeof name);
    name_of(b, name, sizeof name);
}
static void name_huge(struct gb *b)
{
    gb_head(b, 1, 0);
    gb_u64(b, UINT64_MAX);
    gb_fill(b, 'n', 64);
}

static void dims_of(struct gb *b, uint32_t n_dims, uint64_t a, uint64_t c, uint64_t d, uint64_t e)
{
    const uint64_t ne[9] = {a, c, d, e, 1, 1, 1, 1, 1};
    gb_head(b, 1, 0);
    gb_str(b, "t");
    gb_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims && i < 9; i++)
        gb_u64(b, ne[i]);
    gb_u32(b, 0);
    gb_u64(b, 0);
    gb_fill(b, 0, 128);
}
static void dims_0(struct gb *b) { dims_of(b, 0, 0, 0, 0, 0); }
static void dims_5(struct gb *b) { dims_of(b, 5, 1, 1, 1, 1); }
static void dims_9(struct gb *b) { dims_of(b, 9, 1, 1, 1, 1); }
static void dims_max(struct gb *b) { dims_of(b, UINT32_MAX, 1, 1, 1, 1); }
static void ne_zero(struct gb *b) { dims_of(b, 2, 0, 4, 0, 0); }
static void ne_zero_last(struct gb *b) { dims_of(b, 2, 4, 0, 0, 0); }
static void ne_negative(struct gb *b) { dims_of(b, 2, 4, (uint64_t)-1, 0, 0); }
static void ne_above(struct gb *b) { dims_of(b, 1, (1ull << 40) + 1, 0, 0, 0); }
static void ne_product(struct gb *b) { dims_of(b, 2, 1ull << 30, (1ull << 14) + 1, 0, 0); }
static void ne_product_wraps(struct gb *b) { dims_of(b, 4, 1ull << 32, 1ull << 32, 4, 1); }
static void ne_product_wraps_late(struct gb *b)
{
    dims_of(b, 4, 1ull << 11, 1ull << 40, 1ull << 40, 1ull << 37);
}
static void ne_beyond_int(struct gb *b) { dims_of(b, 2, (1ull << 32) + 4, 1, 0, 0); }
static void ne_exabyte(struct gb *b) { dims_of(b, 2, 1ull << 40, 1ull << 4, 0, 0); }

static void one_tensor(struct gb *b, uint64_t ne0, uint32_t type, uint64_t offset, size_t data)
{
    gb_head(b, 1, 0);
    gb_tensor1(b, "t", ne0, type, offset);
    gb_pad(b, 32);
    gb_fill(b, 0, data);
}
static void type_4(struct gb *b) { one_tensor(b, 64, 4, 0, 40); }
static void type_9(struct gb *b) { one_tensor(b, 64, 9, 0, 72); }
static void type_15(struct gb *b) { one_tensor(b, 256, 15, 0, 292); }
static void type_31(struct gb *b) { one_tensor(b, 64, 31, 0, 40); }
static void type_36(struct gb *b) { one_tensor(b, 64, 36, 0, 40); }
static void type_43(struct gb *b) { one_tensor(b, 64, 43, 0, 33); }
static void type_200(struct gb *b) { one_tensor(b, 64, 200, 0, 64); }
static void type_42_as_34(struct gb *b) { one_tensor(b, 128, 42, 0, 34 * 10); }
static void type_42_short(struct gb *b) { one_tensor(b, 128, 42, 0, 34); }
static void type_42_inside(struct gb *b)
{
    gb_head(b, 2, 0);
    gb_tensor1(b, "t", 1280, 42, 0); /* 360 bytes as Q2_0, 340 as the other: the next is at 352 */
    gb_tensor1(b, "u", 4, 0, 352);
    gb_pad(b, 32);
    gb_fill(b, 0, 352 + 16);
}
static void block_k(struct gb *b) { one_tensor(b, 255, 12, 0, 512); }
static void block_32(struct gb *b) { one_tensor(b, 48, 8, 0, 512); }
static void offset_odd(struct gb *b) { one_tensor(b, 4, 0, 16, 512); }
static void offset_past_end(struct gb *b) { one_tensor(b, 4, 0, 544, 512); }
static void offset_at_end(struct gb *b) { one_tensor(b, 4, 0, 512, 512); }
static void offset_wraps(struct gb *b) { one_tensor(b, 16, 0, (uint64_t)-32, 512); }
static void data_short(struct gb *b) { one_tensor(b, 129, 0, 0, 512); }
static void data_none(struct gb *b) { one_tensor(b, 1, 0, 0, 0); }
static void data_no_padding(struct gb *b) { gb_head(b, 1, 0); gb_tensor1(b, "t", 4, 0, 0); }

static void sum_wraps(struct gb *b)
{
    gb_head(b, 3, 0);
    gb_tensor2(b, "t", 1ull << 40, 16, 28, 0);
    gb_tensor2(b, "u", 1ull << 40, 16, 28, 1ull << 47);
    gb_tensor2(b, "v", 1ull << 40, 16, 28, 1ull << 48);
    gb_pad(b, 32);
    gb_fill(b, 0, 512);
}
static void overlap_same(struct gb *b)
{
    gb_head(b, 2, 0);
    gb_tensor1(b, "t", 4, 0, 0);
    gb_tensor1(b, "u", 4, 0, 0);
    gb_pad(b, 32);
    gb_fill(b, 0, 64);
}
static void overlap_part(struct gb *b)
{
    gb_head(b, 3, 0);
    gb_tensor1(b, "t", 4, 0, 64);
    gb_tensor1(b, "u", 9, 0, 32);
    gb_tensor1(b, "v", 4, 0, 0);
    gb_pad(b, 32);
    gb_fill(b, 0, 96);
}
static void duplicate_names(struct gb *b)
{
    gb_head(b, 3, 0);
    gb_tensor1(b, "t", 4, 0, 0);
    gb_tensor1(b, "u", 4, 0, 32);
    gb_tensor1(b, "t", 4, 0, 64);
    gb_pad(b, 32);
    gb_fill(b, 0, 96);
}
static void blocks_version(struct gb *b, uint32_t version)
{
    gb_head(b, 1, 1);
    gb_kv_u32(b, "general.quantization_version", version);
    gb_tensor1(b, "t", 32, 8, 0);
    gb_pad(b, 32);
    gb_fill(b, 0, 34);
}
static void blocks_version_0(struct gb *b) { blocks_version(b, 0); }
static void blocks_version_1(struct gb *b) { blocks_version(b, 1); }
static void split_huge(struct gb *b) { gb_head(b, 0, 1); gb_kv_u32(b, "split.count", 1025); }
static void split_negative(struct gb *b)
{
    gb_head(b, 0, 1);
    gb_key(b, "split.count", 5);
    gb_u32(b, (uint32_t)-1);
}
static void split_string(struct gb *b) { gb_head(b, 0, 1); gb_kv_str(b, "split.count", "2"); }

static void ok_v2(struct gb *b) { gb_good(b); b->at[4] = 2; }
static void ok_empty(struct gb *b) { gb_head(b, 0, 0); }
static void ok_key_1024(struct gb *b)
{
    char key[1024];
    memset(key, '!', sizeof key);
    key_of(b, key, sizeof key);
}
static void ok_name_127(struct gb *b)
{
    char name[127];
    memset(name, ' ', sizeof name);
    name_of(b, name, sizeof name);
}
static void ok_alignment_8(struct gb *b) { aligned(b, 8); }
static void ok_alignment_u64(struct gb *b)
{
    gb_head(b, 1, 1);
    gb_key(b, "general.alignment", 10);
    gb_u64(b, 64);
    gb_tensor1(b, "t", 4, 0, 64);
    gb_pad(b, 64);
    gb_fill(b, 0, 80);
}
static void ok_padding(struct gb *b) { one_tensor(b, 128, 0, 0, 512 + 31); }
static void surplus(struct gb *b) { one_tensor(b, 128, 0, 0, 512 + 32); }
static void surplus_alone(struct gb *b) { gb_head(b, 0, 0); gb_fill(b, 0, 64); }
static void ok_last_byte(struct gb *b) { one_tensor(b, 128, 0, 0, 512); }
static void ok_type_42(struct gb *b) { one_tensor(b, 128, 42, 0, 36); }
static void ok_type_42_padded(struct gb *b) { one_tensor(b, 128, 42, 0, 64); }
static void ok_type_41(struct gb *b) { one_tensor(b, 128, 41, 0, 18); }
static void ok_blocks_version_2(struct gb *b) { blocks_version(b, 2); }
static void ok_split_0(struct gb *b) { gb_head(b, 0, 1); gb_kv_u32(b, "split.count", 0); }
static void ok_split_1(struct gb *b) { gb_head(b, 0, 1); gb_kv_u32(b, "split.count", 1); }

#define ROW(fn, status, says) {#fn, fn, INGLE_##status, says}
static const struct {
    const char *name;
    build_fn *build;
    ingle_status status;
    const char *says;
} refused[] = {
    ROW(v_magic, FORMAT, "magic is 'GGUG', not 'GGUF'"),
    ROW(v_0, UNSUP, "version is 0, this build reads 2 and 3"),
    ROW(v_1, UNSUP, "version is 1, this build reads 2 and 3"),
    ROW(v_4, UNSUP, "version is 4"),
    ROW(v_big_endian, UNSUP, "version is 0x03000000: the file is in the wrong byte order"),
    ROW(n_kv_limit, LIMIT, "metadata count is 65537, the limit is 65536"),
    ROW(n_kv_left, LIMIT, "metadata count is 5, the limit is 65536 and what fits 64 bytes"),
    ROW(n_kv_huge, LIMIT, "metadata count is 1152921504606846976"),
    ROW(n_kv_max, LIMIT, "metadata count is 18446744073709551615"),
    ROW(n_kv_more_than_there, FORMAT, "key at byte 48 needs 8 bytes but only 3 are left"),
    ROW(n_tensors_limit, LIMIT, "tensor count is 262145, the limit is 262144"),
    ROW(n_tensors_left, LIMIT, "tensor count is 2, the limit is 262144 and what fits 63 bytes"),
    ROW(n_tensors_huge, LIMIT, "tensor count is 288230376151711744"),
    ROW(n_tensors_negative, LIMIT, "tensor count is 18446744073709551615"),
    ROW(key_empty, LIMIT, "key at byte 24 has 0 bytes, allowed is 1 to 1024"),
    ROW(key_space, FORMAT, "key 'a b' has byte 0x20 at [1]"),
    ROW(key_del, FORMAT, "key 'a?' has byte 0x7f at [1]"),
    ROW(key_high, FORMAT, "key '?\?' has byte 0xc3 at [0]"),
    ROW(key_nul, FORMAT, "key 'a?b' has byte 0x00 at [1]"),
    ROW(key_long, LIMIT, "key at byte 24 has 1025 bytes, allowed is 1 to 1024"),
    ROW(key_huge, LIMIT, "key at byte 24 has 9223372036854775808 bytes"),
    ROW(type_13, FORMAT, "key 'k' has value type 13, the highest is 12"),
    ROW(type_max, FORMAT, "key 'k' has value type 4294967295"),
    ROW(bool_2, FORMAT, "key 'k' is a bool of 2 at [0], allowed is 0 or 1"),
    ROW(bools_255, FORMAT, "key 'k' is a bool of 255 at [2]"),
    ROW(string_past_end, LIMIT,
        "key 'k': string of 33 bytes, the limit is 67108864 and the 32 bytes left"),
    ROW(string_int32, LIMIT, "key 'k': string of 2147483648 bytes"),
    ROW(string_wraps_32, LIMIT, "key 'k': string of 4294967297 bytes"),
    ROW(string_limit, LIMIT, "key 'k': string of 67108865 bytes, the limit is 67108864"),
    ROW(string_max, LIMIT, "key 'k': string of 18446744073709551615 bytes"),
    ROW(string_wraps_pos, LIMIT, "key 'k': string of 18446744073709551584 bytes"),
    ROW(array_left, LIMIT,
        "key 'k': array of 9 elements, the limit is 67108864 and what fits 35 bytes"),
    ROW(array_left_u8, LIMIT, "key 'k': array of 33 elements"),
    ROW(array_limit, LIMIT, "key 'k': array of 67108865 elements, the limit is 67108864"),
    ROW(array_wraps, LIMIT, "key 'k': array of 2305843009213693952 elements"),
    ROW(array_2_60, LIMIT, "key 'k': array of 1152921504606846976 elements"),
    ROW(array_strings_left, LIMIT, "key 'k': array of 5 elements"),
    ROW(array_unknown_elem, FORMAT, "key 'k' is an array of type 13, which is unknown"),
    ROW(array_nested, FORMAT, "key 'k' is an array of type 9, nested arrays are not read"),
    ROW(array_string_past_end, LIMIT, "key 'k': string of 9 bytes"),
    ROW(duplicate_keys, FORMAT, "key 'k.one' is there twice"),
    ROW(alignment_0, FORMAT, "key 'general.alignment' is 0 at [0], allowed is 8 to 1048576"),
    ROW(alignment_4, FORMAT, "key 'general.alignment' is 4 at [0], allowed is 8 to 1048576"),
    ROW(alignment_24, FORMAT, "key 'general.alignment' is 24, no power of two"),
    ROW(alignment_2m, FORMAT, "key 'general.alignment' is 2097152"),
    ROW(alignment_max, FORMAT, "key 'general.alignment' is 2147483648"),
    ROW(alignment_string, FORMAT, "key 'general.alignment' is a string where an integer is needed"),
    ROW(alignment_float, FORMAT, "key 'general.alignment' is a float where an integer is needed"),
    ROW(alignment_negative, FORMAT, "key 'general.alignment' is -32 at [0], allowed is 8"),
    ROW(alignment_array, FORMAT, "key 'general.alignment' is an array of unsigned integers where"),
    ROW(name_empty, LIMIT, "tensor name at byte 24 has 0 bytes, allowed is 1 to 127"),
    ROW(name_nul, FORMAT, "tensor name 'a?' has byte 0x00 at [1]"),
    ROW(name_newline, FORMAT, "tensor name 'a?b' has byte 0x0a at [1]"),
    ROW(name_high, FORMAT, "tensor name 'a?' has byte 0xff at [1]"),
    ROW(name_long, LIMIT, "tensor name at byte 24 has 128 bytes, allowed is 1 to 127"),
    ROW(name_huge, LIMIT, "tensor name at byte 24 has 18446744073709551615 bytes"),
    ROW(dims_0, FORMAT, "tensor 't' has 0 dimensions, allowed is 1 to 4"),
    ROW(dims_5, FORMAT, "tensor 't' has 5 dimensions"),
    ROW(dims_9, FORMAT, "tensor 't' has 9 dimensions"),
    ROW(dims_max, FORMAT, "tensor 't' has 4294967295 dimensions"),
    ROW(ne_zero, FORMAT, "tensor 't': ne[0] is 0, allowed is 1 to 1099511627776"),
    ROW(ne_zero_last, FORMAT, "tensor 't': ne[1] is 0, allowed is 1"),
    ROW(ne_negative, FORMAT, "tensor 't': ne[1] is 18446744073709551615"),
    ROW(ne_above, FORMAT, "tensor 't': ne[0] is 1099511627777, allowed is 1 to 1099511627776"),
    ROW(ne_product, LIMIT, "tensor 't' has more than 17592186044416 elements"),
    ROW(ne_product_wraps, LIMIT, "tensor 't' has more than 17592186044416 elements"),
    ROW(ne_product_wraps_late, LIMIT, "tensor 't' has more than 17592186044416 elements"),
    ROW(ne_beyond_int, FORMAT, "tensor 't' at offset 0 has 17179869200 bytes but the data has"),
    ROW(ne_exabyte, FORMAT, "tensor 't' at offset 0 has 70368744177664 bytes but the data has"),
    ROW(type_4, UNSUP,
        "tensor 't' has type id 4, which is unknown or retired (64 elements in 40 bytes: 0.6250"),
    ROW(type_9, UNSUP, "tensor 't' has type id 9"),
    ROW(type_15, UNSUP, "tensor 't' has type id 15"),
    ROW(type_31, UNSUP, "tensor 't' has type id 31"),
    ROW(type_36, UNSUP, "tensor 't' has type id 36"),
    ROW(type_43, UNSUP,
        "tensor 't' has type id 43, which is unknown or retired (64 elements in 33 bytes: 0.5156"),
    ROW(type_200, UNSUP, "tensor 't' has type id 200"),
    ROW(type_42_as_34, UNSUP, "tensor 't' has type id 42, but 340 bytes where Q2_0 needs 36"),
    ROW(type_42_short, UNSUP, "tensor 't' has type id 42, but 34 bytes where Q2_0 needs 36"),
    ROW(type_42_inside, UNSUP, "tensor 't' has type id 42, but 352 bytes where Q2_0 needs 360"),
    ROW(block_k, FORMAT, "tensor 't': ne[0] is 255, no multiple of the 256 of Q4_K"),
    ROW(block_32, FORMAT, "tensor 't': ne[0] is 48, no multiple of the 32 of Q8_0"),
    ROW(offset_odd, FORMAT, "tensor 't': offset 16 is no multiple of 32"),
    ROW(offset_past_end, FORMAT, "tensor 't' is at offset 544 but the data has 512 bytes"),
    ROW(offset_at_end, FORMAT, "tensor 't' at offset 512 has 16 bytes but the data has 512"),
    ROW(offset_wraps, FORMAT, "tensor 't' is at offset 18446744073709551584 but the data has 512"),
    ROW(data_short, FORMAT, "tensor 't' at offset 0 has 516 bytes but the data has 512"),
    ROW(data_none, FORMAT, "tensor 't' at offset 0 has 4 bytes but the data has 0"),
    ROW(data_no_padding, FORMAT, "tensor 't' at offset 0 has 16 bytes but the data has 0"),
    ROW(sum_wraps, FORMAT, "tensor 't' at offset 0 has 140737488355328 bytes but the data has 512"),
    ROW(overlap_same, FORMAT, "at offset 0 overlaps"),
    ROW(overlap_part, FORMAT, "tensor 't' at offset 64 overlaps 'u', which ends at 68"),
    ROW(duplicate_names, FORMAT, "tensor 't' is there twice"),
    ROW(blocks_version_0, UNSUP, "key 'general.quantization_version' is 0, this build reads 2"),
    ROW(blocks_version_1, UNSUP, "key 'general.quantization_version' is 1, this build reads 2"),
    ROW(surplus, FORMAT, "32 bytes after the last tensor belong to nothing"),
    ROW(surplus_alone, FORMAT, "64 bytes after the last tensor belong to nothing"),
    ROW(split_huge, LIMIT, "key 'split.count' is 1025, the limit is 1024"),
    ROW(split_negative, FORMAT, "key 'split.count' is -1 at [0]"),
    ROW(split_string, FORMAT, "key 'split.count' is a string where an integer is needed"),
};

/* clang-format on */

static void malformed_files_are_refused_with_their_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct gb b = {0};
        struct io_file *f = NULL;
        struct err err;
        refused[i].build(&b);
        const ingle_status s = open_both(&b, &f, &err);
        if (s == INGLE_OK || err.status != refused[i].status || !strstr(err.msg, refused[i].says))
            fail_msg("%s: status %d, said: %s", refused[i].name, (int)s, err.msg);
        assert_null(f);
        gb_free(&b);
    }
}

static void the_edges_of_the_limits_are_open(void **state)
{
    (void)state;
    static build_fn *const good[] = {
        ok_v2,
        ok_empty,
        ok_key_1024,
        ok_name_127,
        ok_alignment_8,
        ok_alignment_u64,
        ok_last_byte,
        ok_padding,
        ok_type_42,
        ok_type_42_padded,
        ok_type_41,
        ok_blocks_version_2,
        ok_split_0,
        ok_split_1,
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct gb b = {0};
        struct io_file *f;
        struct err err;
        good[i](&b);
        if (open_both(&b, &f, &err))
            fail_msg("good[%zu] was refused: %s", i, err.msg);
        io_close(f);
        gb_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_files_are_refused_with_their_field),
        cmocka_unit_test(the_edges_of_the_limits_are_open),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
