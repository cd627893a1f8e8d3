/* SPDX-License-Identifier: Apache-2.0 */
/* other - files that are not weights: recognised by how they begin, with what to do. */
#define _DEFAULT_SOURCE
#include "io/inner.h"
#include "io/table.h"

#include "base/file.h"
#include "base/num.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { HEAD = 512 };

static const struct { const char *begins; size_t n; const char *is;
} kinds[] = {
    {"<!doctype", 9,
     "a web page, perhaps the answer to a download that failed: fetch the file again"},
    {"<html", 5, "a web page, perhaps the answer to a download that failed: fetch the file again"},
    {"<?xml", 5, "an XML text, perhaps the answer to a download that failed: fetch the file again"},
    {"PK\x03\x04", 4,
     "a zip archive, as PyTorch writes weights: convert it to safetensors or GGUF"},
    {"\x80\x02", 2, "a pickle of PyTorch: convert it to safetensors or GGUF"},
    {"\x80\x04", 2, "a pickle of Python: convert it to safetensors or GGUF"},
    {"\x1f\x8b", 2, "compressed (gzip): unpack it"},
    {"\xfd"
     "7zXZ",
     5, "compressed (xz): unpack it"},
    {"\x28\xb5\x2f\xfd", 4, "compressed (zstd): unpack it"},
    {"7z\xbc\xaf", 4, "an archive (7z): unpack it"},
    {"BZh", 3, "compressed (bzip2): unpack it"},
    {"\x89HDF", 4, "HDF5, as TensorFlow and Keras write weights: take safetensors or GGUF"},
    {"lmgg", 4, "of an old format (GGML, before GGUF): take a GGUF file"},
    {"tjgg", 4, "of an old format (GGJT, before GGUF): take a GGUF file"},
    {"fmgg", 4, "of an old format (GGMF, before GGUF): take a GGUF file"},
};

/* Letters compare without case where the beginning is text. */
static bool begins(const char *head, size_t n, const char *with, size_t n_with)
{
    return n >= n_with && strncasecmp(head, with, n_with) == 0;
}

static bool is_text(const char *head, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)head[i];
        if ((c < 32 && c != '\n' && c != '\r' && c != '\t') || c == 127 || c > 0xf4)
            return false;
    }
    return n >= 8;
}

static bool is_zero(const char *head, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (head[i])
            return false;
    return true;
}

/* Counts, then the length of a first name and the name: what llama.cpp wrote before GGUF. */
static bool is_imatrix(const char *head, size_t n)
{
    uint32_t n_entries, n_name;
    if (n < 32)
        return false;
    memcpy(&n_entries, head, 4);
    memcpy(&n_name, head + 4, 4);
    return n_entries > 0 && n_entries <= 65536 && n_name >= 8 && n_name <= 256 &&
           (begins(head + 8, n - 8, "blk.", 4) || begins(head + 8, n - 8, "output", 6));
}

bool io_is_lfs_pointer(const char *text, size_t n)
{
    static const char lfs[] = "version https://git-lfs";
    return begins(text, n, lfs, sizeof lfs - 1);
}

static ingle_status refuse(const char *path, const char *head, size_t n, struct err *err)
{
    if (io_is_lfs_pointer(head, n)) {
        const char *size = strstr(head, "\nsize ");
        return err_set(
            err, INGLE_FORMAT,
            "%s: is a pointer of git-LFS to a file of %llu bytes, not the file: run 'git lfs pull'",
            path, size ? strtoull(size + 6, NULL, 10) : 0ull);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (begins(head, n, kinds[i].begins, kinds[i].n))
            return err_set(err, INGLE_FORMAT, "%s: is %s", path, kinds[i].is);
    if (is_imatrix(head, n))
        return err_set(
            err, INGLE_UNSUP,
            "%s: is an importance matrix, which tells a quantiser what matters: give the model",
            path);
    if (is_text(head, n)) {
        size_t line = strcspn(head, "\r\n");
        return err_set(err, INGLE_FORMAT, "%s: is a text file, not a model: it begins '%s'", path,
                       io_show(head, line < 80 ? line : 80).text);
    }
    if (n >= 16 && is_zero(head, n))
        return err_set(
            err, INGLE_FORMAT,
            "%s: begins with %zu zeros: space that a download reserved and did not fill; fetch the "
            "file again",
            path, n);
    return INGLE_OK;
}

static bool has_neighbour(const char *path, const char *suffix)
{
    struct stat st;
    char name[PATH_MAX];
    return snprintf(name, sizeof name, "%s%s", path, suffix) < (int)sizeof name &&
           stat(name, &st) == 0;
}

bool io_is_unfinished_name(const char *path)
{
    static const char *const ends[] = {".part",  ".partial",    ".incomplete", ".crdownload",
                                       ".aria2", ".download",   ".tmp",        ".!ut",
                                       ".!qB",   ".opdownload", ".filepart"};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof ends / sizeof *ends; i++)
        if (!strcasecmp(dot, ends[i]))
            return true;
    return false;
}

ingle_status io_part_other(const struct io_file *f, const struct io_part *p, struct err *err)
{
    char head[HEAD + 1] = {0};
    const size_t n = p->n_bytes < HEAD ? (size_t)p->n_bytes : HEAD;
    if (!n)
        return err_set(err, INGLE_FORMAT, "%s: is empty", p->path);
    ingle_status s = file_read_at(p->fd, p->path, 0, head, n, err);
    if (!s && has_neighbour(p->path, ".aria2"))
        return err_set(err, INGLE_FORMAT,
                       "%s: its download is not finished: its '.aria2' file is there", p->path);
    if (!s)
        s = refuse(p->path, head, n, err);
    if (!s && io_is_unfinished_name(p->path))
        report(f->sink, INGLE_REPORT_WARN, "file", p->path,
               "by its name it is a download that is not finished");
    return s;
}
