/*
 * store_file - a restore point as a file, for this room only.
 *
 *   header   struct kv_file_header, with a checksum over itself
 *   meta     tokens int32 [n_tokens - from], zeros up to 8 bytes, struct kv_media_span [n_spans]
 *            (version 2: pictures and sounds, whose tokens are -1), checksums of the pages
 *            [n_pages], mark [mark_bytes], zeros up to a multiple of 4,096 from the start
 *            of the file; its checksum stands in the header
 *   pages    as they are in memory, group by group, ascending; each has its checksum
 *
 * A file continues another one, its parent: pages of groups that keep everything begin at
 * page from / 128 (the parent's last page, if partly filled, is here once more); windows
 * are whole.  from = 0: it stands alone.  Every byte of the file is under a checksum.
 */
#ifndef INGLE_KV_STORE_FILE_H
#define INGLE_KV_STORE_FILE_H

#include "kv/page.h"
#include <assert.h>

/* Files without spans are of the first version; keys have not changed since then. */
enum { KV_FILE_VERSION = 2, KV_FILE_PLAIN = 1, KV_KEY_VERSION = 1 };
enum { KV_FILE_ENDIAN = 0x01020304, KV_FILE_ALIGN = 4096 };

/* All of it is checked against the size of the file and the layout of the pages. */
struct kv_file_header {
    char magic[8];
    uint32_t version, endian;
    struct kv_key context;       /* model, layout of the pages, numerics, this format */
    struct kv_key key, parent;   /* of tokens [0, length) and [0, from) in the context */
    struct kv_key plain;         /* of tokens [0, length) in any context */
    uint64_t identity;           /* the model's */
    int64_t from, length;        /* positions that this file adds: [from, length) */
    int64_t n_tokens;            /* >= length; those after length wait to be computed */
    uint64_t n_pages, mark_bytes;
    uint64_t meta_bytes, file_bytes;
    int64_t created;             /* seconds since 1970 */
    /* as in struct kv_scope, where it says something of these positions; else 0 */
    uint16_t n_groups, n_spans;
    uint32_t sparse;
    char model[48], settings[32]; /* for people: kv_file_settings(), kv_file_texts() */
    struct kv_key meta_sum, sum;
};
static_assert(sizeof(struct kv_file_header) == 272, "a file format: do not pad");
static_assert(sizeof(struct kv_media_span) == 48, "a file format: do not pad");

/* Its settings: "f16 exact", how a sparse prompt is computed, and whether a drafter's pages are
 * there.  What has no room in .settings stands in .model after the name, which is shortened for
 * it. */
void kv_file_settings(struct kv_file_header *h, const char *settings, bool drafter);
/* Both of them, whole. */
struct kv_file_texts {
    char model[48], settings[80];
};
struct kv_file_texts kv_file_texts(const struct kv_file_header *h);
/* The header's own checksum: over it with `sum` zero. */
struct kv_key kv_file_header_sum(const struct kv_file_header *h);

static inline bool kv_key_equal(struct kv_key a, struct kv_key b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

/* The first page that a file from `from` to `length` has of group g, and how many pages in
 * all; false: no such number. */
int64_t kv_file_first(const struct kv_spec *s, uint32_t g, int64_t from, int64_t length);
MUST_CHECK bool kv_file_pages(const struct kv_spec *s, int64_t from, int64_t length,
                              uint64_t *n_pages, uint64_t *n_bytes);

/* ---- writing ---- */

struct kv_file_out {
    struct kv_file_header head;  /* context, keys, lengths, texts; the rest is filled in */
    const int32_t *token;        /* [n_tokens - from], with keys */
    struct kv_media *media;      /* of those; NULL: there are none */
    const void *mark;            /* [mark_bytes] */
    const uint8_t *const *page;  /* [n_pages]; NULL: fetch() has it */
    const size_t *page_bytes;    /* [n_pages] */
    ingle_status (*fetch)(void *arg, uint64_t i, void *to, struct err *err);
    void *fetch_arg;
    bool (*stop)(void *arg);     /* asked between pieces; true: give up.  May be NULL */
    void *arg;
};

/* Writes through a temporary name in the directory; nothing is left behind on failure.
 * INGLE_LIMIT: no space; INGLE_CANCEL: stop() said so. */
MUST_CHECK ingle_status kv_file_write(int dir, const char *name, struct kv_file_out *o,
                                      struct err *err);
/* Is this a temporary name, and did its writer die?  Then it is removed.  now: by the clock that
 * dates files. */
bool kv_file_is_temporary(const char *name);
void kv_file_remove_stale(int dir, const char *name, int64_t now);

/* ---- reading ---- */

struct kv_file {
    int fd;
    const char *name; /* borrowed, for messages */
    struct kv_file_header head;
    uint8_t *meta;    /* [meta_bytes], after kv_file_read_meta() */
    int32_t *token;
    const struct kv_media_span *span; /* [n_spans] */
    const struct kv_key *page_sum; /* [n_pages] */
    const uint8_t *mark;
};

/* Opens and checks the header against itself and the size.  INGLE_NOTFOUND: it is not
 * there; INGLE_UNSUP: another version's or byte order's; INGLE_FORMAT: damaged. */
MUST_CHECK ingle_status kv_file_open(struct kv_file *f, int dir, const char *name, struct err *err);
/* Reads and checks the tokens, checksums and mark of a file of this layout. */
MUST_CHECK ingle_status kv_file_read_meta(struct kv_file *f, const struct kv_spec *s,
                                          struct err *err);
/* Puts keys in the place of spans' tokens: of names that the table has; others' are equal to
 * nothing. */
void kv_file_find_keys(const struct kv_file *f, struct kv_media *m);
/* Reads pages [first, first + n) to where `to` says; NULL: not wanted.  Not checked. */
MUST_CHECK ingle_status kv_file_read_pages(const struct kv_file *f, const struct kv_spec *s,
                                           uint64_t first, uint64_t n, uint8_t *const *to,
                                           struct err *err);
/* Is this what page i of the file must be? */
bool kv_file_page_good(const struct kv_file *f, uint64_t i, const void *at, size_t n);
void kv_file_close(struct kv_file *f);

#endif
