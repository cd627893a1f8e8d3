/* SPDX-License-Identifier: Apache-2.0 */
/* find - where the encoders of a model are. */
#include "tower/tower.h"

#include "base/mem.h"
#include "base/names.h"
#include "base/str.h"
#include <string.h>
#include <strings.h>

enum { MOST_NAMES = 4096, MOST_LISTED = 8 };

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

bool tower_is_in(const struct io_file *file)
{
    static const char *const part[] = {
        "v.patch_embd.",          "a.conv1d.",           "mm.input_projection.",
        "mm.a.input_projection.", "model.vision_tower.", "model.audio_tower.",
        "model.vision_embedder.", "model.embed_vision.", "model.embed_audio."};
    for (size_t i = 0; i < io_n_tensors(file); i++)
        for (size_t k = 0; k < sizeof part / sizeof *part; k++)
            if (begins(io_tensor_at(file, i)->name, part[k]))
                return true;
    return false;
}

static bool is_letter(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (unsigned char)c >= 0x80;
}

/* "mmproj-F16.gguf", "NAME-mmproj.gguf" */
static bool is_projector(const char *name)
{
    const size_t n = strlen(name);
    if (n <= 5 || strcasecmp(name + n - 5, ".gguf") != 0)
        return false;
    for (const char *p = name; *p; p++)
        if ((p == name || !is_letter(p[-1])) && strncasecmp(p, "mmproj", 6) == 0)
            return true;
    return false;
}

/* The projector files in a folder; the first one in *path. */
static ingle_status find_in(const char *dir, size_t *n, char **path, struct str *list,
                            struct err *err)
{
    struct names all = {0};
    ingle_status s = names_read(dir, MOST_NAMES, &all, err);
    for (size_t i = 0; !s && i < all.n; i++) {
        if (!is_projector(all.at[i]))
            continue;
        if (++*n <= MOST_LISTED)
            str_addf(list, "%s'%s'", *n > 1 ? ", " : "", all.at[i]);
        if (*n > 1)
            continue;
        struct str one;
        str_init(&one);
        str_addf(&one, "%s/%s", dir, all.at[i]);
        *path = str_detach(&one);
        if (!*path)
            s = err_set(err, INGLE_NOMEM, "no memory for the name of a file");
    }
    names_release(&all);
    return s;
}

/* Whether the model's own file, or its checkpoint, has them. */
static ingle_status check_inside(const char *model, bool *has, struct err *err)
{
    struct io_file *file;
    const struct report_sink silent = {0};
    const ingle_status s = io_open(&file, model, &silent, err);
    if (s)
        return s;
    *has = tower_is_in(file);
    io_close(file);
    return INGLE_OK;
}

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return mem_strdup(".");
    struct str dir;
    str_init(&dir);
    str_add(&dir, path, slash > path ? (size_t)(slash - path) : 1);
    return str_detach(&dir);
}

ingle_status tower_find(const char *model, char **path, struct err *err)
{
    const size_t length = strlen(model);
    const bool is_gguf = length > 5 && !strcmp(model + length - 5, ".gguf");
    bool inside = false;
    char *dir = is_gguf ? folder_of(model) : mem_strdup(model), *found = NULL;
    size_t n = 0;
    struct str list;
    str_init(&list);
    if (!dir) {
        str_release(&list);
        return err_set(err, INGLE_NOMEM, "no memory for the name of a folder");
    }
    ingle_status s = check_inside(model, &inside, err);
    if (!s && !inside && (is_gguf || !check_inside(dir, &inside, NULL)))
        s = find_in(dir, &n, &found, &list, err);
    if (!s && n > 1)
        s = err_set(err, INGLE_ARG,
                    "'%s': %zu projector files are beside it: %s%s: name one of them", model, n,
                    list.at, n > MOST_LISTED ? ", ..." : "");
    if (!s && !n && !inside)
        s = err_set(err, INGLE_NOTFOUND,
                    "'%s': no *mmproj*.gguf is beside it, and it has no encoders itself", model);
    if (!s && inside && !(found = mem_strdup(model)))
        s = err_set(err, INGLE_NOMEM, "no memory for the name of a file");
    str_release(&list);
    mem_free(dir);
    if (s)
        mem_free(found);
    else
        *path = found;
    return s;
}
