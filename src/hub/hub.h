/*
 * hub - model files from a hub of the Hugging Face form, by libcurl.
 *
 * The hub lists the files of a repository (GET /api/models/OWNER/NAME/tree/REVISION) and gives them in ranges
 * (GET /OWNER/NAME/resolve/REVISION/PATH).  Which ones are wanted is decided by a code of weights (hub_choose()).  A file is
 * written beside its place as NAME.part, in pieces that are fetched side by side; NAME.part.state tells which are there, so a
 * later call goes on.  It gets its name when its size and its SHA-256 are what the hub says; until then nothing looks whole.
 * The token goes to the hub alone: not to where it redirects, and into no message.
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
    bool wanted;
};
struct hub_list {
    struct hub_file *at; /* [n] */
    size_t n, cap;
};
void hub_list_release(struct hub_list *l);

/* Appends the files of a listing, one page of it; text is JSON.  INGLE_FORMAT: it is none, or a path leaves the repository. */
MUST_CHECK ingle_status hub_list_read(struct hub_list *l, const char *text, size_t n, struct err *err);
/* Marks what a model of this code needs: a GGUF file, or all of its parts; code "": the only one, Q4_K_M, or a checkpoint of
 * safetensors.  *first: what is opened (a file, or "" for the folder).  The error lists the codes. */
MUST_CHECK ingle_status hub_choose(struct hub_list *l, const char *code, const char **first, struct err *err);

struct hub_options {
    const char *address;   /* "https://huggingface.co" */
    const char *revision;  /* "main" */
    const char *token;     /* NULL: none */
    const char *directory; /* files go to DIRECTORY/OWNER/NAME/PATH */
    int connections;       /* at once */
    uint64_t piece_bytes;  /* of a file; 0: 32 MiB */
    bool offline;          /* nothing is fetched: what is complete is found */
    const struct report_sink *sink; /* progress; may be NULL */
};

/* "OWNER/NAME[:CODE]" to a path that can be opened, ended with mem_free().  A model that was pulled before is found without
 * the hub.  INGLE_IO: the hub, the disk; INGLE_CANCEL: the progress callback wants to stop. */
MUST_CHECK ingle_status hub_pull(const char *name, const struct hub_options *o, char **path, struct err *err);
/* The files of a repository. */
MUST_CHECK ingle_status hub_list(const char *name, const struct hub_options *o, struct hub_list *out, struct err *err);

#endif
