/*
 * table - inside the room: names and sizes of tensors, checked.
 */
#ifndef INGLE_IO_TABLE_H
#define INGLE_IO_TABLE_H

#include "io/inner.h"

/* table.c */
MUST_CHECK ingle_status io_part_new(struct io_file *f, const char *path, struct io_part **out,
                                    struct err *err);
MUST_CHECK ingle_status io_part_add(struct io_file *f, const char *path, struct err *err);
/* Appends a tensor; the name is copied. */
MUST_CHECK ingle_status io_tensor_add(struct io_file *f, const struct io_tensor *t, size_t n_name,
                                      struct err *err);
/* Makes the names findable; a name twice is an error. */
MUST_CHECK ingle_status io_tensors_index(struct io_file *f, struct err *err);

/* A GGUF file of n_bytes of which the first n_head are there; takes head, also on failure. */
MUST_CHECK ingle_status io_open_head(struct io_file **out, const char *name, char *head,
                                     uint64_t n_bytes, const struct io_planned *planned,
                                     const struct report_sink *sink, struct err *err);

/* The formats: f has its first part (a directory: none); these fill tensors and metadata
 * and index the names. */
MUST_CHECK ingle_status io_gguf_open(struct io_file *f, struct err *err);
MUST_CHECK ingle_status io_safetensors_open(struct io_file *f, struct err *err);
MUST_CHECK ingle_status io_safetensors_open_dir(struct io_file *f, const char *dir,
                                                struct err *err);

/* The safetensors name of a type, NULL if it has none. */
const char *io_dtype_name(uint32_t type);

/* A span of bytes that a tensor claims, for the search for overlaps. */
struct io_span {
    uint64_t offset, n_bytes;
    size_t tensor;
};

/* Ascending by offset, then length. */
void io_spans_sort(struct io_span *s, size_t n);

/* A printable beginning of bytes from a file, for messages. */
struct io_shown {
    char text[80];
};
struct io_shown io_show(const char *s, size_t n);

#endif
