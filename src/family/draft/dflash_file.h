/*
 * dflash_file - a drafter's file: keys, tensors, names of a checkpoint.
 */
#ifndef INGLE_FAMILY_DRAFT_DFLASH_FILE_H
#define INGLE_FAMILY_DRAFT_DFLASH_FILE_H

#include "family/draft/dflash.h"

/* ---- dflash_load.c ---- */

/* A key of a drafter's file, under the first of these names that is there
 * ("block_size|dflash.block_size"). */
struct dflash_keys {
    const struct io_meta *meta;
    const char *path, *arch;
    bool checkpoint;  /* keys are made from config.json */
    ingle_status s;   /* the first error; later calls do nothing */
    struct err *err;
};
void family_dflash_keys(struct dflash_keys *k, const struct model *m, const struct io_meta *meta,
                        struct err *err);
const struct io_value *family_dflash_key(const struct dflash_keys *k, const char *names,
                                         char full[128]);
/* fallback < 0: the key must be there. */
int64_t family_dflash_whole(struct dflash_keys *k, const char *names, int64_t min, int64_t max,
                            int64_t fallback);
double family_dflash_number(struct dflash_keys *k, const char *names, double min, double max,
                            double fallback);
bool family_dflash_flag(struct dflash_keys *k, const char *names, bool fallback);

/* Whether it is a file of a drafter of these kinds, by its architecture. */
bool family_dflash_is_file(const struct io_meta *meta);
bool family_dflash_has_key(const struct model *m, const struct io_meta *meta, const char *names);

int64_t family_dflash_columns(const struct model *m, const char *name);

/* Checks the pairing and binds all but heads; what it owns ends with family_dflash_release(), also
 * after an error. */
MUST_CHECK ingle_status family_dflash_bind(struct dflash *g, struct dflash_keys *k,
                                           const struct family_draft_target *target,
                                           struct model *m, struct err *err);
/* The head: the target's, or `output.weight` of fewer tokens with the list of them. */
MUST_CHECK ingle_status family_dflash_bind_head(struct dflash *g, struct dflash_keys *k,
                                                struct model *m, struct err *err);
/* The end of a bind(): the status, with an error that names the file. */
MUST_CHECK ingle_status family_dflash_detect(struct dflash_keys *k);
void family_dflash_release(struct dflash *g);
MUST_CHECK ingle_status family_dflash_set(struct dflash *g, const struct family_draft_options *o,
                                          struct err *err);
/* "causal", "window", "bidir", ... ; false: none of them. */
bool family_dflash_rule(struct dflash *g, const char *name);

/* ---- dflash_hf.c ---- */

bool family_dflash_is_named(struct json_object *config, const char *architecture);
ingle_status family_dflash_config(struct json_object *config, struct io_meta *out,
                                  const struct report_sink *sink, struct err *err);
bool family_dflash_rename(const char *name, char *out, size_t n_out);
bool family_dflash_alias(const char *name, char *out, size_t n_out);
/* Of a GGUF file: its tensors' names in a checkpoint, and the config.json. */
bool family_dflash_hf_name(const struct io_file *file, const char *name, char *out, size_t n_out);
ingle_status family_dflash_to_config(const struct io_file *file, struct json_object *out,
                                     struct err *err);
/* Members of o: its taps, layers after which the network reads (*last: as many layers as it
 * needs), and the token of rows to fill. */
struct family_back;
void family_dflash_back_taps(struct family_back *b, struct json_object *o, const char *key,
                             uint64_t *last);
void family_dflash_back_mask(struct family_back *b, struct json_object *o, const char *key);
/* Whether a file's tensor is one of these networks'. */
bool family_dflash_is_tensor(const char *name, bool checkpoint);

#endif
