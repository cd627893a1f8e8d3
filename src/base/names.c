/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "base/names.h"

#include "base/mem.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

void names_release(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->at[i]);
    mem_free(l->at);
    *l = (struct names){0};
}

static int by_name(const void *a, const void *b)
{
    char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

ingle_status names_add(struct names *l, const char *name, struct err *err)
{
    if (!mem_grow(&l->at, &l->cap, l->n + 1, sizeof *l->at) || !(l->at[l->n] = mem_strdup(name)))
        return err_set(err, INGLE_NOMEM, "no memory for the names of files");
    l->n++;
    return INGLE_OK;
}

ingle_status names_read(const char *dir, size_t most, struct names *out, struct err *err)
{
    struct names l = {0};
    ingle_status s = INGLE_OK;
    DIR *d = opendir(dir);
    if (!d)
        return err_set(err, INGLE_IO, "%s: cannot read the folder", dir);
    for (const struct dirent *e; !s && l.n < most && (e = readdir(d));)
        if (e->d_name[0] != '.')
            s = names_add(&l, e->d_name, err);
    closedir(d);
    if (s) {
        names_release(&l);
        return s;
    }
    if (l.n)
        qsort(l.at, l.n, sizeof *l.at, by_name);
    *out = l;
    return INGLE_OK;
}
