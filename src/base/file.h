/*
 * file - reading regular files: exact reads at an offset, maps, whole small files.
 * Errors name the file.
 */
#ifndef INGLE_BASE_FILE_H
#define INGLE_BASE_FILE_H

#include "base/err.h"
#include <dirent.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

/* Opens a regular file for reading.  Returns the descriptor in *fd and its size. */
MUST_CHECK ingle_status file_open(const char *path, int *fd, uint64_t *n_bytes, struct err *err);
void file_close(int fd);

/* Exactly n bytes at offset, or an error (a short file is one). */
MUST_CHECK ingle_status file_read_at(int fd, const char *path, uint64_t offset, void *dst, size_t n,
                                     struct err *err);

bool file_is_folder(const char *path); /* NULL: no */
/* The names of an open directory, from the first one on, for readdir(); NULL with errno. */
DIR *file_list(int dir);

struct stat;

/* Whether nobody besides its owner has to do with a file.  Files of root may be read by a group: by
 * root's, as systemd has it (LoadCredential=), which shows that the service's user was added to
 * them (an access list), and by one of this process, as Kubernetes has it (fsGroup). */
bool file_is_private(const struct stat *is);

/* The whole file, at most limit bytes, with a 0 after it; ended with mem_free(). */
MUST_CHECK ingle_status file_slurp(const char *path, size_t limit, char **out, size_t *n,
                                   struct err *err);

/* A read-only map of the file; ended with file_unmap(). */
MUST_CHECK ingle_status file_map(int fd, const char *path, uint64_t n_bytes, const void **out,
                                 struct err *err);
void file_unmap(const void *at, uint64_t n_bytes);

/* Around writes: beyond the limit on file sizes (ulimit -f) they fail with EFBIG, and the signal
 * that would end the program first is not delivered. */
struct file_limit {
    unsigned char before[128]; /* a sigset_t, which C11 does not know */
    bool was_pending;
};
void file_limit_hold(struct file_limit *l);
void file_limit_drop(const struct file_limit *l); /* errno stays */

/* A file that appears whole or not at all: written under a temporary name beside it, opened by
 * base/output.h.  Zero before file_new_open(); ended by file_new_finish() or file_new_drop(), which
 * removes what was written. */
struct file_new {
    char *path, *tmp;
    int fd; /* valid while tmp is set */
    bool again;
};
MUST_CHECK ingle_status file_new_open(struct file_new *f, const char *path, struct err *err);
/* The temporary name is PATH.part, and what a file of that name has is kept: that of a call that
 * was ended.  Another process that writes it is an error. */
MUST_CHECK ingle_status file_new_again(struct file_new *f, const char *path, struct err *err);
/* so far */
MUST_CHECK ingle_status file_new_size(const struct file_new *f, uint64_t *n_bytes, struct err *err);
MUST_CHECK ingle_status file_new_empty(const struct file_new *f, struct err *err);
void file_new_leave(struct file_new *f); /* PATH.part stays, for file_new_again() */
/* Any thread. */
MUST_CHECK ingle_status file_new_write(const struct file_new *f, uint64_t offset, const void *bytes,
                                       size_t n, struct err *err);
MUST_CHECK ingle_status file_new_finish(struct file_new *f, struct err *err); /* sync, rename */
void file_new_drop(struct file_new *f);

#endif
