/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gb_free(struct gb *b)
{
    free(b->at);
    *b = (struct gb){0};
}

static unsigned char *room(struct gb *b, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n) + 64;
        b->at = realloc(b->at, b->cap);
        if (!b->at)
            abort();
    }
    b->n += n;
    return b->at + b->n - n;
}

void gb_bytes(struct gb *b, const void *bytes, size_t n)
{
    if (n)
        memcpy(room(b, n), bytes, n);
}

void gb_u8(struct gb *b, uint8_t v)
{
    gb_bytes(b, &v, sizeof v);
}

void gb_u32(struct gb *b, uint32_t v)
{
    gb_bytes(b, &v, sizeof v);
}

void gb_u64(struct gb *b, uint64_t v)
{
    gb_bytes(b, &v, sizeof v);
}

void gb_fill(struct gb *b, int byte, size_t n)
{
    if (n)
        memset(room(b, n), byte, n);
}

void gb_pad(struct gb *b, size_t alignment)
{
    gb_fill(b, 0, (alignment - b->n % alignment) % alignment);
}

void gb_strn(struct gb *b, const char *s, size_t n)
{
    gb_u64(b, n);
    gb_bytes(b, s, n);
}

void gb_str(struct gb *b, const char *s)
{
    gb_strn(b, s, strlen(s));
}

void gb_head(struct gb *b, uint64_t n_tensors, uint64_t n_kv)
{
    gb_bytes(b, "GGUF", 4);
    gb_u32(b, 3);
    gb_u64(b, n_tensors);
    gb_u64(b, n_kv);
}

void gb_key(struct gb *b, const char *key, uint32_t type)
{
    gb_str(b, key);
    gb_u32(b, type);
}

void gb_kv_u32(struct gb *b, const char *key, uint32_t v)
{
    gb_key(b, key, 4);
    gb_u32(b, v);
}

void gb_kv_str(struct gb *b, const char *key, const char *v)
{
    gb_key(b, key, 8);
    gb_str(b, v);
}

void gb_array(struct gb *b, const char *key, uint32_t elem, uint64_t n)
{
    gb_key(b, key, 9);
    gb_u32(b, elem);
    gb_u64(b, n);
}

void gb_tensor(struct gb *b, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
               uint64_t offset)
{
    gb_str(b, name);
    gb_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        gb_u64(b, ne[i]);
    gb_u32(b, type);
    gb_u64(b, offset);
}

void gb_tensor1(struct gb *b, const char *name, uint64_t ne0, uint32_t type, uint64_t offset)
{
    gb_tensor(b, name, 1, &ne0, type, offset);
}

void gb_tensor2(struct gb *b, const char *name, uint64_t ne0, uint64_t ne1, uint32_t type,
                uint64_t offset)
{
    const uint64_t ne[2] = {ne0, ne1};
    gb_tensor(b, name, 2, ne, type, offset);
}

static void good_scalars(struct gb *b)
{
    static const struct {
        const char *key;
        uint32_t type;
        size_t n;
        unsigned char bytes[8];
    } v[] = {
        {"t.u8", 0, 1, {200}},
        {"t.i8", 1, 1, {0xFE}},
        {"t.u16", 2, 2, {0x10, 0x27}},
        {"t.i16", 3, 2, {0xF0, 0xD8}},
        {"t.u32", 4, 4, {0, 0, 0, 0x80}},
        {"t.i32", 5, 4, {0xFF, 0xFF, 0xFF, 0xFF}},
        {"t.f32", 6, 4, {0, 0, 0xC0, 0x3F}},
        {"t.bool", 7, 1, {1}},
        {"t.u64", 10, 8, {1, 0, 0, 0, 0, 0, 0, 0x80}},
        {"t.i64", 11, 8, {0, 0, 0, 0, 0, 0, 0, 0x80}},
        {"t.f64", 12, 8, {0, 0, 0, 0, 0, 0, 4, 0xC0}},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        gb_key(b, v[i].key, v[i].type);
        gb_bytes(b, v[i].bytes, v[i].n);
    }
}

void gb_good(struct gb *b)
{
    static const unsigned char data[] = {0x00, 0x3C, 1,  2,  3,  4,  5,  6,  7,
                                         8,    9,    10, 11, 12, 13, 14, 15, 16};
    gb_head(b, 3, 18);
    gb_kv_str(b, "general.architecture", "toy");
    good_scalars(b);
    gb_key(b, "t.str", 8);
    gb_strn(b, "a\0b", 3);
    gb_array(b, "t.strs", 8, 3);
    gb_str(b, "one");
    gb_str(b, "");
    gb_strn(b, "\0\xFF", 2);
    gb_array(b, "t.i32s", 5, 2);
    gb_u32(b, (uint32_t)-7);
    gb_u32(b, 9);
    gb_array(b, "t.f32s", 6, 2);
    gb_bytes(b, "\0\0\x80\x3F\0\0\0\xC0", 8);
    gb_array(b, "t.bools", 7, 3);
    gb_bytes(b, "\1\0\1", 3);
    gb_array(b, "t.none", 4, 0);
    gb_tensor2(b, "a.weight", 4, 2, 0, 0);
    gb_tensor1(b, "b.weight", 32, 2, 64);
    gb_tensor1(b, "c", 3, 26, 32);
    gb_pad(b, 32);
    for (int i = 0; i < 8; i++) {
        const float f = (float)i / 2;
        gb_bytes(b, &f, sizeof f);
    }
    gb_u32(b, 7);
    gb_u32(b, 8);
    gb_u32(b, (uint32_t)-9);
    gb_pad(b, 32);
    gb_bytes(b, data, sizeof data); /* the padding of the last tensor may be missing */
}

void gb_write(const struct gb *b, const char *path)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(b->at, 1, b->n, f) != b->n || fclose(f))
        abort();
}
