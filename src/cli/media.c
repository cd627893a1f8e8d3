/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures and sounds of a conversation: each is opened once, and found again by its path. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { MOST_BYTES = 25 << 20 };

static const struct cli_medium *find(const struct cli_talk *t, const char *path)
{
    for (size_t i = 0; i < t->n_media; i++)
        if (strcmp(t->medium[i].path, path) == 0)
            return &t->medium[i];
    return NULL;
}

static ingle_status refuse(struct ingle_error *error, const struct err *err)
{
    error->status = err->status;
    snprintf(error->text, sizeof error->text, "%s", err->msg);
    return err->status;
}

static ingle_status open_file(struct cli_talk *t, const char *path, enum ingle_media_kind kind,
                              struct ingle_medium **out, struct ingle_error *error)
{
    struct err err;
    char *bytes = NULL;
    size_t n = 0;
    if (file_slurp(path, MOST_BYTES, &bytes, &n, &err))
        return refuse(error, &err);
    const struct ingle_media in = {.kind = kind, .bytes = bytes, .n_bytes = n, .name = path};
    const ingle_status st = ingle_medium_open(out, t->engine, &in, error);
    mem_free(bytes);
    return st;
}

ingle_status cli_media_add(struct cli_talk *t, const char *path, enum ingle_media_kind kind,
                           const struct cli_medium **out, struct ingle_error *error)
{
    struct err err;
    struct ingle_medium_info info;
    struct cli_medium m = {0};
    *out = find(t, path);
    if (*out)
        return INGLE_OK;
    ingle_status st = open_file(t, path, kind, &m.medium, error);
    if (st)
        return st;
    ingle_medium_info(m.medium, &info);
    m.is_sound = info.kind == INGLE_MEDIA_AUDIO;
    m.path = mem_strdup(path);
    if (!m.path || !mem_grow(&t->medium, &t->cap_media, t->n_media + 1, sizeof *t->medium)) {
        mem_free(m.path);
        ingle_medium_close(m.medium);
        (void)err_set(&err, INGLE_NOMEM, "%s: no memory for it", path);
        return refuse(error, &err);
    }
    t->medium[t->n_media] = m;
    *out = &t->medium[t->n_media++];
    return INGLE_OK;
}

void cli_media_close(struct cli_talk *t)
{
    for (size_t i = 0; i < t->n_media; i++) {
        ingle_medium_close(t->medium[i].medium);
        mem_free(t->medium[i].path);
    }
    mem_free(t->medium);
    t->medium = NULL;
    t->n_media = t->cap_media = 0;
}

void cli_media_put(struct str *s, const struct cli_medium *m)
{
    str_adds(s,
             m->is_sound ? "{\"type\": \"audio\", \"path\": " : "{\"type\": \"image\", \"path\": ");
    str_add_json(s, m->path, strlen(m->path));
    str_adds(s, "}, ");
}

/* Of the next of --image and --audio as they were given; NULL: there is none. */
static const char *next_option(const struct ingle_config *c, size_t at[2],
                               enum ingle_media_kind *kind)
{
    const size_t image = ingle_config_place(c, "image", at[0]),
                 audio = ingle_config_place(c, "audio", at[1]);
    if (!image && !audio)
        return NULL;
    const bool is_image = image && (!audio || image < audio);
    *kind = is_image ? INGLE_MEDIA_IMAGE : INGLE_MEDIA_AUDIO;
    return is_image ? ingle_config_text(c, "image", at[0]++)
                    : ingle_config_text(c, "audio", at[1]++);
}

int cli_media_options(struct cli *c, struct cli_talk *t, struct str *parts)
{
    struct ingle_error error;
    enum ingle_media_kind kind;
    const struct cli_medium *m;
    const char *path;
    size_t at[2] = {0, 0};
    while ((path = next_option(c->config, at, &kind))) {
        if (at[0] + at[1] > CLI_MOST_MEDIA)
            return cli_usage(c, "more than %d pictures and sounds are given", CLI_MOST_MEDIA);
        if (cli_media_add(t, path, kind, &m, &error))
            return cli_fail(c, &error);
        cli_media_put(parts, m);
    }
    return CLI_OK;
}

static ingle_status add_of_part(struct cli_talk *t, struct json_object *part,
                                struct ingle_medium **out, size_t *n, struct ingle_error *error)
{
    struct err err;
    struct json_object *path = NULL;
    const struct cli_medium *m;
    if (!json_object_is_type(part, json_type_object) ||
        !json_object_object_get_ex(part, "path", &path) ||
        !json_object_is_type(path, json_type_string))
        return INGLE_OK;
    if (*n == CLI_MOST_MEDIA) {
        (void)err_set(&err, INGLE_ARG, "the conversation has more than %d pictures and sounds",
                      CLI_MOST_MEDIA);
        return refuse(error, &err);
    }
    const ingle_status st =
        cli_media_add(t, json_object_get_string(path), INGLE_MEDIA_ANY, &m, error);
    if (!st)
        out[(*n)++] = m->medium;
    return st;
}

ingle_status cli_media_of(struct cli_talk *t, struct json_object *messages,
                          struct ingle_medium *out[CLI_MOST_MEDIA], size_t *n,
                          struct ingle_error *error)
{
    ingle_status st = INGLE_OK;
    *n = 0;
    for (size_t i = 0; !st && i < json_object_array_length(messages); i++) {
        struct json_object *content = NULL;
        json_object_object_get_ex(json_object_array_get_idx(messages, i), "content", &content);
        for (size_t k = 0; !st && json_object_is_type(content, json_type_array) &&
                           k < json_object_array_length(content);
             k++)
            st = add_of_part(t, json_object_array_get_idx(content, k), out, n, error);
    }
    return st;
}
