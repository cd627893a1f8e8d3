/*
 * gguf_build - writes GGUF bytes, good or bad, one field at a time.
 *
 * Memory must not run out (the program stops).  gb_free() ends it.
 */
#ifndef INGLE_TESTS_GGUF_BUILD_H
#define INGLE_TESTS_GGUF_BUILD_H

#include <stddef.h>
#include <stdint.h>

struct gb {
    unsigned char *at;
    size_t n, cap;
};

void gb_free(struct gb *b);
void gb_bytes(struct gb *b, const void *bytes, size_t n);
void gb_u8(struct gb *b, uint8_t v);
void gb_u32(struct gb *b, uint32_t v);
void gb_u64(struct gb *b, uint64_t v);
void gb_fill(struct gb *b, int byte, size_t n);
void gb_pad(struct gb *b, size_t alignment);
/* Length and bytes. */
void gb_strn(struct gb *b, const char *s, size_t n);
void gb_str(struct gb *b, const char *s);

/* Magic, version 3 and the counts. */
void gb_head(struct gb *b, uint64_t n_tensors, uint64_t n_kv);
/* Key and value type; the value follows. */
void gb_key(struct gb *b, const char *key, uint32_t type);
void gb_kv_u32(struct gb *b, const char *key, uint32_t v);
void gb_kv_str(struct gb *b, const char *key, const char *v);
/* Key, array, element type, count; the elements follow. */
void gb_array(struct gb *b, const char *key, uint32_t elem, uint64_t n);
/* An entry of the tensor table. */
void gb_tensor(struct gb *b, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
               uint64_t offset);
/* The same with one or two dimensions. */
void gb_tensor1(struct gb *b, const char *name, uint64_t ne0, uint32_t type, uint64_t offset);
void gb_tensor2(struct gb *b, const char *name, uint64_t ne0, uint64_t ne1, uint32_t type,
                uint64_t offset);

/* A small good file with every value type, arrays, strings and three tensors. */
void gb_good(struct gb *b);

/* Writes the bytes to a file, or stops the program. */
void gb_write(const struct gb *b, const char *path);

#endif
