/* config - inside the room: numbers of a config.json into GGUF keys. */
#ifndef INGLE_FAMILY_CONFIG_H
#define INGLE_FAMILY_CONFIG_H

#include "base/json.h"
#include "base/report.h"
#include "io/io.h"

struct family_config {
    struct json_object *json; /* the object with the text model's values */
    struct io_meta *out;
    const struct report_sink *sink;
    ingle_status s;           /* the first error; later calls do nothing */
    struct err *err;
};

/* Whether `end` is ".weight" or the end of a tensor that belongs to a matrix of that name. */
bool family_config_is_weight(const char *end);

/* The tensor `hf` of a checkpoint as `gguf` after a prefix, and what belongs to a matrix of that
 * name (scales).  False: name is neither. */
bool family_config_rename(const char *name, const char *hf, const char *gguf, const char *prefix,
                          char *out, size_t n_out);

/* NULL: o is no object, or the key is absent or null. */
struct json_object *family_config_get(struct json_object *o, const char *key);

/* The value of o's key (absent or null: fallback; an error if fallback is negative). */
uint64_t family_config_read(struct family_config *c, struct json_object *o, const char *key,
                            int64_t fallback);
bool family_config_flag(struct family_config *c, const char *key);

/* Reads o's key and sets the GGUF key.  A number that is absent and has a fallback other than
 * 0 (which switches a part of the network off) is reported. */
void family_config_whole(struct family_config *c, struct json_object *o, const char *key,
                         const char *gguf, int64_t fallback);
void family_config_number(struct family_config *c, struct json_object *o, const char *key,
                          const char *gguf, double fallback);
/* 'tie_word_embeddings' of the text model or of the whole: false if one of them says so; absent:
 * nothing is set. */
void family_config_tie(struct family_config *c, struct json_object *whole, const char *gguf);
void family_config_set(struct family_config *c, const char *gguf, uint64_t v);

/* ---- the other way: a config.json from the keys of a GGUF file ---- */

struct family_back {
    const struct io_file *file;
    struct json_object *json; /* the config */
    ingle_status s;           /* the first error; later calls do nothing */
    struct err *err;
};

/* The key `gguf` of a family, with the file's architecture as its first part: a drafter's file has
 * its own there. */
enum { FAMILY_BACK_KEY = 96 };
const char *family_back_key(const struct family_back *b, const char *gguf,
                            char out[FAMILY_BACK_KEY]);
/* Takes v; NULL: no memory. */
void family_back_put(struct family_back *b, struct json_object *o, const char *key,
                     struct json_object *v);
/* Appends v, which it takes in any case, to a list. */
void family_back_add(struct family_back *b, struct json_object *list, struct json_object *v);
void family_back_text(struct family_back *b, struct json_object *o, const char *key, const char *v);
/* The value of a key of the file, if it has it. */
void family_back_whole(struct family_back *b, struct json_object *o, const char *key,
                       const char *gguf);
void family_back_number(struct family_back *b, struct json_object *o, const char *key,
                        const char *gguf);
/* An object in o. */
struct json_object *family_back_object(struct family_back *b, struct json_object *o,
                                       const char *key);
/* That of a key, or other. */
uint64_t family_back_get(const struct family_back *b, const char *gguf, uint64_t other);
/* With the digits that a float of 32 bits needs. */
struct json_object *family_back_decimal(double v);
/* What all models have: types, ends, ties. */
void family_back_begin(struct family_back *b, const char *architecture, const char *model_type);

#endif
