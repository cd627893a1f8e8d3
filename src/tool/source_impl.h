/* source_impl - inside the room: what the files of source.h share. */
#ifndef INGLE_TOOL_SOURCE_IMPL_H
#define INGLE_TOOL_SOURCE_IMPL_H

#include "base/json.h"
#include "family/family.h"
#include "tool/source.h"
#include <stdatomic.h>

enum { SOURCE_NAME = 128 };

enum source_how {
    SOURCE_FILE,       /* a tensor of a GGUF file */
    SOURCE_SAME,       /* rows of the stack as they are */
    SOURCE_FLOATS,     /* decoded, times the factor, into F32 or BF16 */
    SOURCE_SCALED,     /* blocks with a half as scale, which takes the factor */
    SOURCE_INTS,       /* I64 into I32 */
    SOURCE_JOINED,     /* rows of two stacks after each other, as floats */
    SOURCE_CONSTANT,   /* F32 in memory */
    SOURCE_LONGS,      /* of a GGUF file: I32 into I64 */
    SOURCE_FP4_CODES,  /* of a GGUF file: elements of MXFP4 or NVFP4 in the order of a checkpoint */
    SOURCE_FP4_SCALES, /* of a GGUF file: their scales */
    SOURCE_LEFT,       /* of a GGUF file: the first half of each row */
    SOURCE_RIGHT,      /* the other half */
};

struct source_item {
    char name[SOURCE_NAME];
    struct io_tensor t; /* t.name is name */
    enum source_how how;
    struct model_stack *a, *b;
    struct model_stack_info ia, ib;
    float *constant; /* owned */
    uint32_t written; /* tool_source_type() */
    bool coded;
    struct io_tensor from; /* of a GGUF file, where t has another type */
};

enum source_kind {
    SOURCE_GGUF,
    SOURCE_GEMMA4,
    SOURCE_DEEPSEEK4,
    SOURCE_MTP,
    SOURCE_MTP_ONLY,
    SOURCE_ASSISTANT,
    SOURCE_DFLASH,
    SOURCE_DSPARK4,
    SOURCE_TOWER
};

struct tool_source {
    const char *path;
    const struct report_sink *sink;
    struct tool_source_options o;
    bool only_read; /* nothing is written from it: what would be left out is no warning */
    struct io_file *file;
    struct json_object *config;
    struct model *model;
    const struct family *family;
    const struct family_draft *draft;
    enum source_kind kind;
    struct io_meta *meta; /* made from config.json; NULL: a GGUF file */
    struct source_item *item;
    size_t n, cap;
    uint64_t n_vocab;   /* 0: not known */
    atomic_bool rounded;
};

/* ---- source_keys.c ---- */

/* Fills s->meta from config.json. */
MUST_CHECK ingle_status tool_source_keys(struct tool_source *s, struct err *err);

/* ---- source_back.c, source_config.c, source_tokenizer.c: a GGUF file as a checkpoint ---- */

/* Fills the list of tensors. */
MUST_CHECK ingle_status tool_source_list_back(struct tool_source *s, struct err *err);
size_t tool_source_work_back(const struct source_item *it, uint64_t n);
MUST_CHECK ingle_status tool_source_rows_back(const struct tool_source *s,
                                              const struct source_item *it, uint64_t row,
                                              uint64_t n, void *work, void *to, struct err *err);
/* An F32 tensor of n elements; takes v, NULL: out of memory. */
MUST_CHECK ingle_status tool_source_add_constant(struct tool_source *s, const char *name, float *v,
                                                 uint64_t n, struct err *err);
MUST_CHECK ingle_status tool_source_new_item(struct tool_source *s, const char *name,
                                             struct source_item **out, struct err *err);
/* config.json, and tokenizer.json with what stands beside it (nothing without a vocabulary). */
MUST_CHECK ingle_status tool_source_config(const struct tool_source *s, struct str *out,
                                           struct err *err);
MUST_CHECK ingle_status tool_source_tokenizer(const struct tool_source *s, struct str *tokenizer,
                                              struct str *config, struct err *err);

/* ---- source_tower.c: the encoders of pictures and sound of a checkpoint ---- */

/* Fills keys and tensors, as an mmproj file has them. */
MUST_CHECK ingle_status tool_source_list_tower(struct tool_source *s, struct err *err);
/* A matrix of s->model under another name. */
MUST_CHECK ingle_status tool_source_add_stack(struct tool_source *s, const char *from,
                                              const char *name, uint32_t axes, struct err *err);

/* ---- source_vocab.c ---- */

/* Writes tokens, merges, ends and the template of the checkpoint's tokenizer.json (of a drafter:
 * its target's). */
MUST_CHECK ingle_status tool_source_vocab(const struct tool_source *s, struct io_gguf *w,
                                          struct err *err);

#endif
