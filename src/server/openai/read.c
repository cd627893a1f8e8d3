/* SPDX-License-Identifier: Apache-2.0 */
#include "server/fields.h"
#include "server/openai/openai.h"

#include "base/mem.h"
#include "server/medium.h"

#include <stdio.h>
#include <string.h>

/* ---- stream ---- */

void openai_read_stream(struct chat_request *r, struct json_object *body,
                        const struct answer_options *o, struct fault *f)
{
    struct json_object *options = request_get_object(body, "stream_options", f);
    if (options)
        params_read(r, options, PARAMS_STREAM_OPTIONS, f);
    r->include_usage = r->include_usage || (r->stream && o->always_usage);
}

/* ---- prompts ---- */

static void add_id(struct request_prompt *p, size_t *cap, struct json_object *v,
                   const struct answer_options *o, struct fault *f)
{
    const int64_t id = json_object_get_int64(v);
    if (id < 0 || id >= o->n_vocab)
        request_fault(f, FAULT_REQUEST, "prompt",
                      "'prompt' has token %lld, outside the vocabulary of %lld", (long long)id,
                      (long long)o->n_vocab);
    else if (!mem_grow(&p->ids, cap, p->n_ids + 1, sizeof *p->ids))
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a prompt");
    else
        p->ids[p->n_ids++] = (int32_t)id;
}

static void add_text(struct request_prompt *p, size_t *cap, struct json_object *v,
                     const struct answer_options *o, struct fault *f)
{
    struct ingle_error e;
    int32_t *ids;
    size_t n;
    const ingle_status st =
        ingle_tokenize(o->model, json_object_get_string(v), (size_t)json_object_get_string_len(v),
                       INGLE_PARSE_SPECIAL | (p->n_ids ? 0 : INGLE_ADD_SPECIAL), &ids, &n, &e);
    if (st) {
        request_fault_from(f, st, "prompt", e.text);
        return;
    }
    if (!mem_grow(&p->ids, cap, p->n_ids + n, sizeof *p->ids))
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a prompt");
    else if (n)
        memcpy(p->ids + p->n_ids, ids, n * sizeof *ids);
    if (!f->kind)
        p->n_ids += n;
    ingle_free(ids);
}

/* Token ids, or token ids and strings. */
static void read_mixed(struct chat_request *r, struct json_object *list,
                       const struct answer_options *o, struct fault *f)
{
    struct request_prompt *p = request_add_prompt(r, f);
    size_t cap = 0;
    if (!p)
        return;
    p->is_ids = true;
    for (size_t i = 0; i < json_object_array_length(list) && request_go_on(f); i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        if (json_object_is_type(v, json_type_int))
            add_id(p, &cap, v, o, f);
        else if (request_is_text(v))
            add_text(p, &cap, v, o, f);
        else
            request_fault(f, FAULT_REQUEST, "prompt", "'prompt' has an item %zu that is neither a "
                                                      "token nor a string", i);
    }
}

static size_t count_markers(struct view t)
{
    size_t n = 0;
    for (const char *at = t.at; (at = strstr(at, MEDIUM_MARKER)); at += strlen(MEDIUM_MARKER))
        n++;
    return n;
}

/* llama.cpp's list of files in base64, for the markers of a prompt. */
static void read_media(struct chat_request *r, struct json_object *media,
                       const struct answer_options *o, struct fault *f)
{
    for (size_t i = 0; media && i < json_object_array_length(media) && request_go_on(f); i++) {
        struct json_object *one = json_object_array_get_idx(media, i);
        char param[64];
        snprintf(param, sizeof param, "prompt.multimodal_data[%zu]", i);
        const struct medium_place at = {"prompt", "file", r->n_prompts - 1, i, param};
        if (!request_is_text(one))
            request_fault(f, FAULT_REQUEST, param, "'%s' is no string", param);
        else if (medium_is_shown(o, one))
            (void)medium_read(r, one, &at, o, f);
        else
            request_fault(f, FAULT_REQUEST, param,
                          "'%s' is a picture or sound: this model reads %s", param,
                          medium_readable(o));
    }
}

void openai_read_prompt(struct chat_request *r, struct json_object *v,
                        const struct answer_options *o, struct fault *f)
{
    struct json_object *text = v, *media = NULL;
    if (f->kind)
        return;
    if (json_object_is_type(v, json_type_array)) {
        read_mixed(r, v, o, f);
        return;
    }
    if (json_object_is_type(v, json_type_object)) {
        text = request_get(v, "prompt_string");
        media = request_get_array(v, "multimodal_data", REQUEST_MAX_VALUES, f);
    }
    if (!request_is_text(text)) {
        request_fault(f, FAULT_REQUEST, "prompt",
                      "'prompt' is neither a string nor a list of tokens");
        return;
    }
    struct request_prompt *p = request_add_prompt(r, f);
    if (!p)
        return;
    str_add(&p->text, json_object_get_string(text), (size_t)json_object_get_string_len(text));
    p->first_medium = r->n_media;
    read_media(r, media, o, f);
    p->n_media = r->n_media - p->first_medium;
    const size_t n = count_markers(view_str(&p->text));
    if (media && !f->kind && n != p->n_media)
        request_fault(f, FAULT_REQUEST, "prompt.multimodal_data",
                      "'prompt' has %zu markers '" MEDIUM_MARKER "' for %zu files", n, p->n_media);
}

/* A list is one prompt if it has a token in it, else a list of prompts. */
void openai_read_prompts(struct chat_request *r, struct json_object *v, bool *many,
                         const struct answer_options *o, struct fault *f)
{
    *many = json_object_is_type(v, json_type_array);
    if (f->kind)
        return;
    if (!v) {
        request_fault(f, FAULT_REQUEST, "prompt", "'prompt' is missing");
        return;
    }
    const size_t n = *many ? json_object_array_length(v) : 0;
    if (*many && !n)
        request_fault(f, FAULT_REQUEST, "prompt", "'prompt' is an empty list");
    for (size_t i = 0; i < n && *many; i++)
        *many = !json_object_is_type(json_object_array_get_idx(v, i), json_type_int);
    if (!*many) {
        openai_read_prompt(r, v, o, f);
        return;
    }
    for (size_t i = 0; i < n && request_go_on(f); i++)
        openai_read_prompt(r, json_object_array_get_idx(v, i), o, f);
}
