/*
 * api - what the interface (include/ingle/ingle.h) says of a model's file, without an engine.
 *
 * model.c      opening a file: tokenizer, chat format, what it says about answers
 * folder.c     the one model that a path stands for
 * relatives.c  files that are no model of a family here
 * vocab.c      GGUF metadata to a tokenizer
 * grammar.c    what an answer's tokens must follow (words.h)
 * chat.c       conversations to prompts
 * spans.c      where pictures and sounds stand in prompts (media.h)
 * say.c        names and errors in its words
 * reader.c     tokens of an answer to events
 *
 * The rest of that interface is in engine/ and run/.  Inside, calls use struct err; engine_say()
 * hands it out.
 */
#ifndef INGLE_API_API_H
#define INGLE_API_API_H

#include "api/media.h"
#include "base/err.h"
#include "base/json.h"
#include "base/report.h"
#include "ingle/ingle.h"
#include "io/io.h"
#include "session/session.h"
#include "text/text.h"
#include <pthread.h>

/* Copies *from into *to (which may be NULL) when st is a failure; returns st. */
ingle_status engine_say(struct ingle_error *to, ingle_status st, const struct err *from);

/* Bytes a second, of reads of one expert (one at a time, several) and of memory; 0: not measured
 * yet. */
struct engine_rates { double one, several, memory; };

struct ingle_model {
    struct report_sink sink;
    char *path;
    struct io_file *file;         /* NULL for a tokenizer.json */
    struct json_object *config;   /* config.json of a checkpoint, or NULL */
    struct tokenizer *tokenizer;  /* NULL: there is none, only ids can be used */
    struct engine_words *words;   /* what its grammars share */
    enum text_chat_family chat;
    struct text_turns turns;      /* of its prompts */
    struct engine_media_ids media;
    const char *chat_name;        /* "gemma4" */
    char *arch, *name;            /* never NULL */
    const char *template_name;
    int32_t *end, *suppress;
    size_t n_end, n_suppress, cap_end, cap_suppress;
    struct ingle_sampling sampling;
    int64_t n_layers, n_embd, n_ctx;
    bool large;
    bool built_in;
    bool revision_0731; /* DeepSeek V4: the effort texts of the later release */
    pthread_mutex_t rates_lock;
    /* Sync: rates_lock.  Measured once, so that plans of one model can be compared */
    struct engine_rates rates;
};

/* The built-in model (api/nano.S). */
extern const unsigned char engine_nano[];
extern const unsigned char engine_nano_end[];
/* Its encoders, an mmproj file (scripts/nano_encoders.py). */
extern const unsigned char engine_nano_encoders[];
extern const unsigned char engine_nano_encoders_end[];

size_t engine_n_tokens(const struct ingle_model *m); /* 0: no tokenizer */
/* Where the turns of a prompt meet. */
void engine_borders(const struct ingle_model *m, const int32_t *ids, int64_t n,
                    struct session_borders *out);
/* INGLE_UNSUP when the model has no tokenizer. */
MUST_CHECK ingle_status engine_need_words(const struct ingle_model *m, struct err *err);
/* text_encode_within(); bounds may be NULL. */
MUST_CHECK ingle_status engine_encode(const struct tokenizer *t, const char *text, size_t n,
                                      bool add_special, const struct text_range *specials,
                                      size_t n_specials, struct ingle_bounds *bounds,
                                      struct text_ids *out, struct err *err);
/* The file or checkpoint folder that path stands for: itself, the one model of a folder, or the one
 * snapshot of a hub's cache.  *out is ended with mem_free().  Errors name what is there. */
MUST_CHECK ingle_status engine_find_file(const char *path, const struct report_sink *sink,
                                         char **out, struct err *err);
/* Files and checkpoint folders that may be a drafter: in a folder, or beside a model by their
 * names.  fn's INGLE_NOMEM ends it, other failures only where a folder was named. */
typedef ingle_status engine_path_fn(void *arg, const char *path, struct err *err);
MUST_CHECK ingle_status engine_each_drafter(const char *dir, engine_path_fn *fn, void *arg,
                                            struct err *err);
MUST_CHECK ingle_status engine_each_sibling(const char *model, engine_path_fn *fn, void *arg,
                                            struct err *err);
/* What a GGUF file is that is no model: "a drafter, ...: give ...", or NULL. */
const char *engine_other_kind(const struct io_file *f);
/* INGLE_UNSUP: what its file is, where that is no model, or none of a known family. */
MUST_CHECK ingle_status engine_check_kind(const struct ingle_model *m, bool known, struct err *err);
MUST_CHECK ingle_status engine_vocab_gguf(struct tokenizer **out, const struct io_meta *meta,
                                          const char *source, struct err *err);
/* *out is ended with mem_free(). */
MUST_CHECK ingle_status engine_json_text(struct json_object *o, char **out, size_t *n,
                                         struct err *err);
/* "gemma4", "deepseek4"; false: no such name. */
bool engine_chat_by_name(const char *name, enum text_chat_family *out);

#endif
