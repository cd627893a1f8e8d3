/* SPDX-License-Identifier: Apache-2.0 */
/* shards - a set of numbered safetensors files without an index. */
#define _DEFAULT_SOURCE
#include "io/inner.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SHARDS = 1024 };

/* "PREFIX-00001-of-00003.safetensors" */
static bool shard_name(const char *name, struct io_shards *set, unsigned *no)
{
    static const char form[] = "-#####-of-#####.safetensors";
    const size_t n = strlen(name), k = sizeof form - 1;
    if (n <= k || n - k >= sizeof set->prefix)
        return false;
    const char *tail = name + n - k;
    for (size_t i = 0; i < k; i++)
        if (form[i] == '#' ? tail[i] < '0' || tail[i] > '9' : tail[i] != form[i])
            return false;
    memset(set->prefix, 0, sizeof set->prefix);
    memcpy(set->prefix, name, n - k);
    return sscanf(tail, "-%5u-of-%5u", no, &set->count) == 2 && *no >= 1 && *no <= set->count &&
           set->count <= MAX_SHARDS;
}

ingle_status io_shards_find(const char *dir, struct io_shards *out, struct err *err)
{
    struct io_shards set = {0}, one;
    bool there[MAX_SHARDS + 1] = {0};
    unsigned n = 0, no;
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (!shard_name(e->d_name, &one, &no))
            continue;
        if (n && (strcmp(one.prefix, set.prefix) != 0 || one.count != set.count)) {
            closedir(d);
            return err_set(
                err, INGLE_FORMAT,
                "%s: has shards of more than one model ('%s' of %u, '%s' of %u) and no index", dir,
                set.prefix, set.count, one.prefix, one.count);
        }
        set = one;
        n += !there[no];
        there[no] = true;
    }
    if (d)
        closedir(d);
    if (!n)
        return err_set(
            err, INGLE_NOTFOUND,
            "%s: has neither model.safetensors nor model.safetensors.index.json nor shards", dir);
    for (no = 1; no <= set.count && n < set.count; no++)
        if (!there[no])
            return err_set(
                err, INGLE_NOTFOUND,
                "%s: %u of %u shards are missing, the first is '%s-%05u-of-%05u.safetensors'", dir,
                set.count - n, set.count, set.prefix, no, set.count);
    *out = set;
    return INGLE_OK;
}
