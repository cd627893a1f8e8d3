/*
 * source - the tensors of a model as rows, whatever they stand in: a GGUF file, or a checkpoint of
 * safetensors with config.json, which looks here like the GGUF file that llama.cpp's converter
 * makes of it (names, shapes, metadata, vocabulary, template).  Codes of a checkpoint (FP8, FP4,
 * whole numbers with scales) come in a type that holds their values.
 */
#ifndef INGLE_TOOL_SOURCE_H
#define INGLE_TOOL_SOURCE_H

#include "io/io.h"
#include "tool/tool.h"

struct tool_source;

/* sink and path are borrowed until it is closed; o may be NULL. */
MUST_CHECK ingle_status tool_source_open(struct tool_source **out, const char *path,
                                         const struct tool_source_options *o,
                                         const struct report_sink *sink, struct err *err);
void tool_source_close(struct tool_source *s);
const char *tool_source_path(const struct tool_source *s);
const struct io_file *tool_source_file(const struct tool_source *s);
bool tool_source_is_gguf(const struct tool_source *s);

/* GGUF keys: of the file, or made from config.json. */
const struct io_meta *tool_source_meta(const struct tool_source *s);
size_t tool_source_n(const struct tool_source *s);
/* Name, shape, type of rows (one that GGUF has) and n_bytes as rows of that type. */
const struct io_tensor *tool_source_at(const struct tool_source *s, size_t i);
const struct io_tensor *tool_source_find(const struct tool_source *s, const char *name);
/* The type that a converter writes when nothing else is requested: that of the rows, but BF16 for
 * codes whose scales are no powers of two. */
uint32_t tool_source_type(const struct tool_source *s, size_t i);
/* A checkpoint's own code of 4 to 8 bits, which stays as it is for every --outtype. */
bool tool_source_is_coded(const struct tool_source *s, size_t i);

/* Rows [row, row + n) of tensor i, all of one matrix.  work: tool_source_work() bytes.  Any
 * thread. */
size_t tool_source_work(const struct tool_source *s, size_t i, uint64_t n);
MUST_CHECK ingle_status tool_source_rows(struct tool_source *s, size_t i, uint64_t row, uint64_t n,
                                         void *work, void *to, struct err *err);

/* Writes the metadata, without general.file_type, general.quantization_version and split.*. */
MUST_CHECK ingle_status tool_source_head(const struct tool_source *s, struct io_gguf *w,
                                         struct err *err);
/* Whether rows are those of a checkpoint that is made of a GGUF file (tool_source_options.back);
 * and what stands beside its weights, into the directory (NULL: whether it can be made), all of it
 * or nothing. */
bool tool_source_is_back(const struct tool_source *s);
MUST_CHECK ingle_status tool_source_side_files(const struct tool_source *s, const char *dir,
                                               struct err *err);
void tool_source_drop_side_files(const char *dir);
/* The names of these files, and of an index; NULL after the last. */
const char *tool_source_side_name(size_t i);
/* Reports values that rows could not hold exactly. */
void tool_source_say(const struct tool_source *s);

#endif
