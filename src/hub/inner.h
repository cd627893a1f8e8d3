/* inner - what the files of hub share. */
#ifndef INGLE_HUB_INNER_H
#define INGLE_HUB_INNER_H

#include "base/str.h"
#include "hub/hub.h"
#include <curl/curl.h>

enum { MOST_CODE = 513, HUB_MOST_URL = 2048, HUB_MOST_WAIT_S = 300 };

/* ---- name.c ---- */
struct hub_name {
    char repository[200]; /* "OWNER/NAME" */
    char code[MOST_CODE]; /* of weights, or a file's name or path; "": none */
    char revision[201];   /* that an address names, or "" */
};
/* hub: its address.  "OWNER/NAME[:CODE]", also after "hf:", "hf.co/", or as the address of one of
 * the hub's pages. */
MUST_CHECK ingle_status hub_name_read(const char *text, const char *hub, struct hub_name *out,
                                      struct err *err);
bool hub_revision_is_safe(const char *s);
/* Whether a path from the hub stays below the folder, and has no character that a terminal would
 * misread. */
bool hub_path_is_safe(const char *path);
/* n bytes of a text from the hub as one line of UTF-8 without controls, cut to n_out. */
void hub_words(char *out, size_t n_out, const char *text, size_t n);

/* ---- list.c ---- */
/* *f with a copy of path. */
MUST_CHECK ingle_status hub_list_add(struct hub_list *l, const struct hub_file *f, const char *path,
                                     struct err *err);

/* NULL: there is none */
const struct hub_file *hub_list_find(const struct hub_list *l, const char *path);

/* ---- note.c ---- */
#define HUB_NOTE ".ingle-hub"
struct hub_wish {
    char *code, *first; /* "": none; the folder */
    bool drafter;
};
struct hub_note {
    bool there, mixed; /* mixed: there are notes of earlier versions for several revisions */
    char *hub, *revision;
    struct hub_list files; /* with their hashes; of an earlier version's note without */
    struct hub_wish *wish; /* [n_wishes] */
    size_t n_wishes, cap_wishes;
};
void hub_note_release(struct hub_note *n);
MUST_CHECK ingle_status hub_note_read(struct hub_note *n, const char *folder, struct err *err);
/* What notes of earlier versions say of a revision; to be released also after a failure. */
MUST_CHECK ingle_status hub_note_read_old(struct hub_note *n, const char *folder,
                                          const char *revision, struct err *err);
/* What becomes known: of the lists those that are wanted. */
struct hub_change {
    const struct hub_list *files, *removed; /* or NULL */
    const char *code, *first;            /* a wish, or NULL */
    bool drafter;
};
MUST_CHECK ingle_status hub_note_change(const char *folder, const char *hub, const char *revision,
                                        const struct hub_change *c, struct err *err);
char *hub_join(const char *a, const char *b); /* "a/b"; ended with mem_free(); NULL: no memory */
/* Notes the times of a regular file of that size; false: there is none. */
bool hub_stamp(const char *folder, struct hub_file *f);
/* Whether the file is there with the hash f->sha256: by its times, else it is hashed and the times
 * are noted in *f. */
MUST_CHECK ingle_status hub_is_there(const struct hub_options *o, const char *folder,
                                     struct hub_file *f, bool *there, bool *hashed,
                                     struct err *err);

/* ---- cache.c ---- */
/* The files of a revision in the cache of Hugging Face's tools; *folder: where they are, ended with
 * mem_free(), or NULL: it has none. */
MUST_CHECK ingle_status hub_cache_list(const struct hub_options *o, const char *repository,
                                       struct hub_list *l, char **folder, struct err *err);
/* The file of these bytes there, ended with mem_free(), or NULL. */
char *hub_cache_blob(const struct hub_options *o, const char *repository, const struct hub_file *f);

/* ---- choose.c ---- */
/* Marks all files of a model that begins with this one ("": a checkpoint). */
MUST_CHECK ingle_status hub_want(struct hub_list *l, const char *first, struct err *err);
bool hub_is_aside(const char *path); /* an encoder of images or sound, importance of columns */
bool hub_is_mmproj(const char *path);
bool hub_same_folder(const char *path, const char *model); /* in one folder */
bool hub_same_model(const char *a, const char *b); /* the same GGUF file, or parts of one */
/* The drafter of this code, else the first one; NULL: there is none. */
const char *hub_drafter(const struct hub_list *l, const char *code);

/* ---- ask.c ---- */
/* A handle for one request to url, with the token where it belongs; NULL: no memory. */
CURL *hub_request(const struct hub_options *o, const char *url);
void hub_escape(struct str *out, const char *path);

/* What an answer says beside its body. */
struct hub_reply {
    char code[64], message[240], type[64]; /* X-Error-Code, X-Error-Message, Content-Type */
    double retry_s;                        /* Retry-After; -1: none */
    char text[4096];                       /* [n_text] beginning of an error's body */
    size_t n_text;
    uint64_t n_seen, since; /* bytes of it, its first moment */
};
void hub_reply_header(struct hub_reply *r, const char *bytes, size_t n);
/* Keeps the beginning of an error's body; 0: it is too long, or takes too long. */
size_t hub_reply_text(struct hub_reply *r, const char *bytes, size_t n);
/* "status 403, GatedRepo: Access to ... is restricted" */
void hub_reply_say(const struct hub_reply *r, long status, char *out, size_t n_out);
MUST_CHECK ingle_status hub_refuses(const struct hub_options *o, const char *what, long status,
                                    const char *says, struct err *err);
/* {"error": "..."}, {"error": {"message": "..."}}, {"message": "..."}: false: none of these. */
bool hub_json_words(const char *text, size_t n, char *out, size_t n_out);
bool hub_is_html(const char *type, const char *text, size_t n);
/* "a page of HTML ('Sign in')" */
void hub_html(char *out, size_t n_out, const char *text, size_t n);

bool hub_is_temporary(long status);
double hub_delay(const struct hub_reply *r, int n_tries);
bool hub_wait(const struct hub_options *o, double seconds); /* false: the owner wants to stop */

/* An answer of at most `most` bytes, or of a range of them ("0-99"); temporary errors are tried
 * again.  next [HUB_MOST_URL]: the address of the next page or ""; may be NULL. */
MUST_CHECK ingle_status hub_get(const struct hub_options *o, const char *what, const char *url,
                                const char *range, size_t most, struct str *body, char *next,
                                struct err *err);

/* ---- pull.c ---- */
/* Where files of a repository go: the folder, and its note. */
MUST_CHECK ingle_status hub_place(const struct hub_options *o, const char *repository,
                                  char **folder, struct hub_note *note, struct err *err);
/* Options for a name: with the revision that it may have. */
MUST_CHECK ingle_status hub_begin(const char *text, const struct hub_options *o,
                                  struct hub_name *name, struct hub_options *own, struct err *err);
MUST_CHECK ingle_status hub_list_files(const struct hub_options *o, const char *repository,
                                       struct hub_list *out, struct err *err);
/* all of a path before its last '/' */
MUST_CHECK ingle_status hub_make_folders(const char *path, struct err *err);

/* ---- fetch.c ---- */
/* The file at FOLDER/PATH is whole afterwards; sha256: the hash of what came. */
MUST_CHECK ingle_status hub_fetch(const struct hub_options *o, const char *repository,
                                  const char *folder, const struct hub_file *f,
                                  uint64_t done_before, uint64_t all, char sha256[65],
                                  struct err *err);
/* The SHA-256 of n bytes of an open file, with progress. */
MUST_CHECK ingle_status hub_hash(const struct hub_options *o, int fd, const char *path, uint64_t n,
                                 char sha256[65], struct err *err);

#endif
