/*
 * keys - inside the room: what a file may say about a model.
 *
 * Every hyper-parameter of a GGUF file ("ARCH.*") and every member of a config.json is found in a
 * table: the family reads it, or it changes no logits, or only some values of it are supported.
 * Any other value is an error that names file, key, value and what is supported.
 *
 * A key in no table, whose value is not 0, false, empty or "none": where its name is of a part of
 * the network (attention, rope, experts, scales, ...) it is refused, since writers put a number
 * there only if something is computed from it; otherwise all such keys are named in one warning.
 */
#ifndef INGLE_FAMILY_KEYS_H
#define INGLE_FAMILY_KEYS_H

#include "base/json.h"
#include "base/report.h"
#include "io/io.h"
#include "model/model.h"

enum family_key_rule {
    FAMILY_KEY_READ,   /* the family reads and checks it */
    FAMILY_KEY_FREE,   /* changes no logits of a text */
    FAMILY_KEY_NUMBER, /* (all elements) a or b */
    FAMILY_KEY_FLAG,   /* a: 0 or 1 */
    FAMILY_KEY_WORD,   /* one of `words`, which are separated by '|'; an array: all elements */
    FAMILY_KEY_SAME,   /* as the key `words`, or a, or absent there */
};

struct family_key {
    /* GGUF: after "ARCH."; config.json: with dots between members; a '*' at its end: whatever
     * follows */
    const char *name;
    enum family_key_rule rule;
    double a, b;
    const char *words;
};

/* Tables end with a name of NULL. */
extern const struct family_key family_gemma4_keys[], family_gemma4_config_keys[];
extern const struct family_key family_deepseek4_keys[], family_deepseek4_config_keys[];
/* drafters of blocks */
extern const struct family_key family_dflash_keys_table[], family_dflash_config_table[];
/* after the family's own */
extern const struct family_key family_common_keys[], family_common_config_keys[];

/* The file's architecture; "": it says none. */
static inline const char *family_architecture(const struct io_meta *m)
{
    const struct io_value *v = io_meta_find(m, "general.architecture");
    return v && v->kind == IO_STR ? v->v.s : "";
}

/* A key that leaves *out as it is where it is absent. */
static inline ingle_status family_key_u64(const struct io_meta *m, const char *key, uint64_t min,
                                          uint64_t max, uint64_t *out, struct err *err)
{
    return io_meta_find(m, key) ? io_get_u64(m, key, min, max, out, err) : INGLE_OK;
}

static inline ingle_status family_key_f64(const struct io_meta *m, const char *key, double min,
                                          double max, double *out, struct err *err)
{
    return io_meta_find(m, key) ? io_get_f64(m, key, min, max, out, err) : INGLE_OK;
}

/* The keys "ARCH.*" of a GGUF file; path is for messages. */
MUST_CHECK ingle_status family_keys_check(const struct io_meta *m, const char *path,
                                          const char *arch, const struct family_key *own,
                                          const struct report_sink *sink, struct err *err);
/* config: the whole file; of one with 'text_config' that is looked at, and of the rest what is no
 * sub-model. */
MUST_CHECK ingle_status family_keys_check_config(struct json_object *config,
                                                 const struct family_key *own,
                                                 const struct report_sink *sink, struct err *err);

/* Which keys the shape of a tensor follows from, and whether it is there at all; keys stand after
 * "ARCH." and are separated by '|'. */
struct family_shape { const char *suffix, *shape, *there; }; /* the last suffix is NULL */
/* err is that of binding tensor name (of layer il, or -1): where it says that the tensor is missing
 * or has another shape, the keys and their values are added. */
void family_shape_explain(const struct model *m, const struct io_meta *meta, const char *arch,
                          const struct family_shape *table, const char *name, int64_t il,
                          struct err *err);
/* An error if a tensor of a block is there that block_count leaves out, unless the block drafts: it
 * has tensor `draft` (NULL: none does). */
MUST_CHECK ingle_status family_check_layers(const struct model *m, const char *arch,
                                            int64_t n_layers, const char *draft, struct err *err);
/* An error if tensor name is there, though the key is missing or 0. */
MUST_CHECK ingle_status family_check_there(const struct model *m, const struct io_meta *meta,
                                           const char *arch, const char *key, const char *name,
                                           struct err *err);

#endif
