/*
 * hub - model files from a hub of the Hugging Face form, by libcurl.
 *
 * The hub lists the files of a repository (GET /api/models/OWNER/NAME/tree/REVISION) and gives them
 * in ranges (GET /OWNER/NAME/resolve/REVISION/PATH).  Which ones are wanted is decided by a code of
 * weights or a file's name (hub_choose()). A file is written beside its place as NAME.part, in
 * pieces that are fetched side by side; NAME.part.state lists those that are there, so a later call
 * goes on.  It gets its name when its size and its SHA-256 are what the hub says; until then
 * nothing looks whole. The token goes to the hub alone: not to where it redirects, and into no
 * message.
 *
 * Files go to DIRECTORY/OWNER/NAME/, those of another revision than main to
 * DIRECTORY/OWNER/NAME@REVISION/, those of a second hub to DIRECTORY/OWNER/NAME@REVISION@ADDRESS/.
 * The note .ingle-hub in such a folder has the hub, the revision, and of each file the hash; a file
 * counts as present only with the hash that the hub names for that revision.
 */
#ifndef INGLE_HUB_HUB_H
#define INGLE_HUB_HUB_H

#include "base/err.h"
#include "base/report.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hub_file {
    char *path; /* in the repository: relative, '/' between names, none of them "." or ".." */
    uint64_t n_bytes;
    char sha256[65]; /* "" for files that the hub keeps without one */
    char oid[65];    /* the hub's name of these bytes, or "" */
    /* in a note: of the file when it had this hash; 0: it was not looked at */
    int64_t mtime_ns, ctime_ns;
    bool wanted;
};
struct hub_list {
    struct hub_file *at; /* [n] */
    size_t n, cap;
    char repository[200]; /* for messages, or "" */
    bool sure;            /* hub_choose(): more files would not change the choice */
    /* hub_choose(): the encoders' file that comes with a model: "auto", or the code of its weights;
     * NULL: none does */
    const char *mmproj;
};
void hub_list_release(struct hub_list *l);

/* Appends the files of a listing, one page of it; text is JSON.  INGLE_FORMAT: it is none, or a
 * path leaves the repository. */
MUST_CHECK ingle_status hub_list_read(struct hub_list *l, const char *text, size_t n,
                                      struct err *err);
/* Marks what a model of this code needs: a GGUF file, or all of its parts; code: that of weights,
 * or a file's name; "": the only one, Q4_K_M, or a checkpoint of safetensors.  Files that are
 * drafters by their names are none of these unless code names one. *first: what is opened (a file,
 * or "" for the folder).  The error lists the codes. */
MUST_CHECK ingle_status hub_choose(struct hub_list *l, const char *code, const char **first,
                                   struct err *err);
/* The same for a drafter: files that are drafters by their names come first. */
MUST_CHECK ingle_status hub_choose_drafter(struct hub_list *l, const char *code, const char **first,
                                           struct err *err);

struct hub_options {
    const char *address;   /* "https://huggingface.co" */
    const char *revision;  /* "main" */
    const char *token;     /* NULL: none */
    const char *token_from;/* for a message: where it is from; NULL: the user named it */
    const char *directory; /* see above */
    /* the folder of Hugging Face's own tools, which is only read; NULL: none */
    const char *cache;
    bool own_cache;        /* that folder is of the hub at `address` */
    int connections;       /* at once */
    uint64_t piece_bytes;  /* of a file; 0: 32 MiB */
    bool offline;          /* nothing is fetched: what is complete is found */
    const char *offline_by;/* "--offline", for a message */
    /* the hub is asked also for what is there, and what changed is fetched */
    bool update;
    /* what is there is returned, and a report says whether the hub has a newer one */
    bool check;
    bool drafter;          /* a drafter is wanted, not a model */
    const char *mmproj;    /* as hub_list.mmproj */
    bool hurry;            /* one try of a few seconds */
    const struct report_sink *sink; /* progress; reports of the kind "hub"; may be NULL */
};

/* "OWNER/NAME[:CODE]" (also "OWNER/NAME:FILE.gguf", or the address of a page of the hub) to a path
 * that can be opened, ended with mem_free().  A model that was pulled before is found without the
 * hub.  INGLE_IO: the hub, the disk; INGLE_CANCEL: the progress callback wants to stop. */
MUST_CHECK ingle_status hub_pull(const char *name, const struct hub_options *o, char **path,
                                 struct err *err);
/* The same, but nothing is asked or fetched; INGLE_NOTFOUND: the hub is needed. */
MUST_CHECK ingle_status hub_find(const char *name, const struct hub_options *o, char **path,
                                 struct err *err);
/* The files of a repository. */
MUST_CHECK ingle_status hub_list(const char *name, const struct hub_options *o,
                                 struct hub_list *out, struct err *err);

/* Files with the headers of a model that was not pulled, and holes for its weights, for a plan:
 * *path can be opened, *folder is ended with hub_head_drop() and mem_free(). */
MUST_CHECK ingle_status hub_head(const char *name, const struct hub_options *o, char **path,
                                 char **folder, struct err *err);
void hub_head_drop(const char *folder);

/* What is in o->directory. */
enum hub_have_kind {
    HUB_HAVE_MODEL,
    HUB_HAVE_CHECKPOINT,
    HUB_HAVE_DRAFTER,
    HUB_HAVE_OTHER,
    HUB_HAVE_PART
};
struct hub_have {
    const char *name;      /* "OWNER/NAME:FILE.gguf", as hub_pull() and hub_delete() take it */
    const char *hub;       /* NULL: not known (an earlier version) */
    const char *revision, *folder;
    enum hub_have_kind kind;
    uint64_t n_bytes;
};
typedef void hub_have_fn(void *arg, const struct hub_have *h);
MUST_CHECK ingle_status hub_each(const struct hub_options *o, hub_have_fn *fn, void *arg,
                                 struct err *err);
/* Removes the files of a model from o->directory, unless a process uses one of them or one is
 * elsewhere.  ask: whether to go on; no is INGLE_CANCEL. */
typedef bool hub_delete_fn(void *arg, const char *folder, size_t n_files, uint64_t n_bytes);
MUST_CHECK ingle_status hub_delete(const char *name, const struct hub_options *o,
                                   hub_delete_fn *ask, void *arg, struct err *err);
void hub_bytes(char out[32], uint64_t n); /* "3.21 GB" */

/* Whether a text is the address of a page of the usual hub ("https://huggingface.co/...",
 * "hf.co/..."). */
bool hub_is_address(const char *text);

#endif
