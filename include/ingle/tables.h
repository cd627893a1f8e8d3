/*
 * tables - the counters and the options of the library, described; ingle.h includes it.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INGLE_TABLES_H
#define INGLE_TABLES_H

#include "ingle/ingle.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the table of counters ---- */

enum ingle_fact_kind {
    INGLE_FACT_INT,
    INGLE_FACT_UINT,
    INGLE_FACT_NUMBER,
    INGLE_FACT_TIME, /* nanoseconds in the struct; as a number seconds */
    INGLE_FACT_FLAG,
    INGLE_FACT_TEXT
};

/* What one member of a struct of counters is, and what it is called where it is shown. */
struct ingle_fact {
    const char *group;  /* "sparse": of struct ingle_sparse */
    enum ingle_fact_kind kind;
    size_t at;          /* in the struct */
    bool mean;          /* it is divided by another member, plus `plus`; `none` if that is 0 */
    enum ingle_fact_kind divisor_kind;
    size_t divisor_at;
    double plus, none;
    const char *key;    /* its member in JSON; NULL: there is none */
    const char *metric; /* its name for Prometheus; NULL: it has none */
    const char *type;   /* "counter", "gauge" */
    const char *help;
};
/* The facts [n] of a group, in the order of JSON; NULL: there is no such group. */
INGLE_API const struct ingle_fact *ingle_facts(const char *group, size_t *n);
/* The value in the struct `of`. */
INGLE_API double ingle_fact_number(const struct ingle_fact *f, const void *of);
INGLE_API const char *ingle_fact_text(const struct ingle_fact *f, const void *of);

/* ---- the table of options ---- */

enum ingle_option_kind {
    INGLE_OPTION_FLAG,   /* present or not */
    INGLE_OPTION_INT,
    INGLE_OPTION_NUMBER,
    INGLE_OPTION_SIZE,   /* bytes: 512M, 12.5G; K, M, G, T are powers of 1024 */
    INGLE_OPTION_TEXT,
    INGLE_OPTION_CHOICE, /* one word of `choices` */
    INGLE_OPTION_LIST    /* TEXT that may be given several times */
};

struct ingle_option {
    const char *name;    /* "top-k" */
    char letter;         /* 't', or 0 */
    enum ingle_option_kind kind;
    double min, max;     /* INT, NUMBER, SIZE */
    const char *fallback;/* the default as text; NULL: none, or what `help` says */
    const char *value;   /* what the value is, in a word: "FILE", "N", "tokens" */
    const char *choices; /* "f32 f16", CHOICE only */
    const char *group;   /* "model", "engine", "sampling", "output" ... */
    const char *where;   /* the commands that take it: "chat run"; "*" for all */
    const char *help;
    /* which member of ingle_engine_options ingle_config_engine() sets to it */
    struct {
        size_t at;
        enum {
            INGLE_MEMBER_NONE,
            INGLE_MEMBER_BOOL,
            INGLE_MEMBER_INT,
            INGLE_MEMBER_INT64,
            INGLE_MEMBER_UINT64,
            INGLE_MEMBER_DOUBLE,
            INGLE_MEMBER_TEXT
        } type;
    } member;
    const char *needs; /* it does nothing without this option, or one of these (blanks), or NULL */
};
INGLE_API const struct ingle_option *ingle_options(size_t *n);

/* Values of options, checked against the table. */
struct ingle_config;
INGLE_API ingle_status ingle_config_open(struct ingle_config **out, struct ingle_error *error);
INGLE_API void ingle_config_close(struct ingle_config *c);
/* INGLE_NOTFOUND: no such option (the text suggests the nearest one of command `where`, or of all
 * if NULL); INGLE_ARG: the text names value and range.  A flag's value is on or off (also true,
 * yes, 1 ...); NULL: on. */
INGLE_API ingle_status ingle_config_set(struct ingle_config *c, const char *where,
                                        const char *name, const char *value,
                                        struct ingle_error *error);
/* Another text in the place of the i-th one that was set for a TEXT or LIST; INGLE_NOTFOUND: there
 * is none. */
INGLE_API ingle_status ingle_config_replace(struct ingle_config *c, const char *name, size_t i,
                                            const char *value, struct ingle_error *error);
/* The value as text: what was set, else the default, else NULL; of a LIST the i-th. */
INGLE_API const char *ingle_config_text(const struct ingle_config *c, const char *name, size_t i);
/* Value i of a list was the n-th of all values that were set, from 1 on; 0: there is none. */
INGLE_API size_t ingle_config_place(const struct ingle_config *c, const char *name, size_t i);
INGLE_API double ingle_config_number(const struct ingle_config *c, const char *name); /* 0: unset */
INGLE_API bool ingle_config_flag(const struct ingle_config *c, const char *name);
/* also a flag that is off */
INGLE_API bool ingle_config_is_set(const struct ingle_config *c, const char *name);
/* The options of an engine; strings are borrowed from c. */
INGLE_API void ingle_config_engine(const struct ingle_config *c, struct ingle_engine_options *out);
/* INGLE_ARG for tokens that m does not have: known before an engine loads the weights. */
INGLE_API ingle_status ingle_config_check(const struct ingle_config *c, const struct ingle_model *m,
                                          struct ingle_error *error);
/* Overrides of what `out` holds; bias is borrowed from c. */
INGLE_API void ingle_config_sampling(const struct ingle_config *c, struct ingle_sampling *out);

#ifdef __cplusplus
}
#endif

#endif
