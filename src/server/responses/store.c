/* SPDX-License-Identifier: Apache-2.0 */
#include "server/responses/responses.h"

#include "base/mem.h"
#include "base/num.h"
#include "server/tape.h"
#include "server/view.h"

#include <pthread.h>
#include <string.h>

struct entry {
    struct entry *next; /* the next newer one */
    struct str user, id, items, object;
    size_t n_input; /* of the items */
    struct tape *tape; /* a reference, or NULL */
    size_t tape_bytes; /* of it, when it ended */
    bool open;         /* being computed: it stays */
};

struct responses_store {
    pthread_mutex_t lock;
    size_t n_max, n_bytes_max;       /* read-only */
    struct entry *oldest, **newest;  /* Sync: lock, as all below; *newest is the end */
    size_t n, n_bytes;
};

static void entry_free(struct entry *e)
{
    if (!e)
        return;
    str_release(&e->user);
    str_release(&e->id);
    str_release(&e->items);
    str_release(&e->object);
    tape_unref(e->tape);
    mem_free(e);
}

static size_t entry_bytes(const struct entry *e)
{
    return sizeof *e + e->user.n + e->id.n + e->items.n + e->object.n + e->tape_bytes;
}

ingle_status responses_store_create(struct responses_store **out, size_t n_max, size_t n_bytes,
                                    struct err *err)
{
    struct responses_store *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a store of answers");
    if (pthread_mutex_init(&s->lock, NULL) != 0) {
        mem_free(s);
        return err_set(err, INGLE_NOMEM, "no lock for a store of answers");
    }
    s->n_max = n_max ? n_max : 1000;
    s->n_bytes_max = n_bytes ? n_bytes : (size_t)64 << 20;
    s->newest = &s->oldest;
    *out = s;
    return INGLE_OK;
}

/* Takes *at out of the list. */
static struct entry *take_out(struct responses_store *s, struct entry **at)
{
    struct entry *e = *at;
    *at = e->next;
    if (s->newest == &e->next)
        s->newest = at;
    s->n--;
    s->n_bytes -= entry_bytes(e);
    return e;
}

static void unlink_entry(struct responses_store *s, struct entry **at)
{
    entry_free(take_out(s, at));
}

void responses_store_free(struct responses_store *s)
{
    if (!s)
        return;
    while (s->oldest)
        unlink_entry(s, &s->oldest);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

static void init_text(struct str *s, const char *at, size_t n)
{
    str_init(s);
    str_add(s, at, n);
}

/* The oldest that are not open go until there is room for n_bytes and one more. */
static void make_room(struct responses_store *s, size_t n_bytes)
{
    struct entry **at = &s->oldest;
    while (*at && (s->n >= s->n_max || s->n_bytes > s->n_bytes_max - n_bytes))
        if ((*at)->open)
            at = &(*at)->next;
        else
            unlink_entry(s, at);
}

static void append(struct responses_store *s, struct entry *e)
{
    e->next = NULL;
    *s->newest = e;
    s->newest = &e->next;
    s->n++;
    s->n_bytes += entry_bytes(e);
}

void responses_store_add(struct responses_store *s, const char *user, const char *id,
                         const struct responses_kept *k)
{
    struct entry *e = mem_zalloc(sizeof *e);
    if (!e)
        return;
    init_text(&e->user, user, strlen(user));
    init_text(&e->id, id, strlen(id));
    init_text(&e->items, k->items->at, k->items->n);
    init_text(&e->object, k->object->at, k->object->n);
    e->n_input = k->n_input;
    e->tape = k->tape ? tape_ref(k->tape) : NULL;
    e->open = k->open;
    const bool whole = str_ok(k->items) && str_ok(k->object) && str_ok(&e->user) &&
                       str_ok(&e->id) && str_ok(&e->items) && str_ok(&e->object);
    const size_t n_bytes = entry_bytes(e);
    if (!whole || n_bytes > s->n_bytes_max) {
        entry_free(e);
        return;
    }
    pthread_mutex_lock(&s->lock);
    make_room(s, n_bytes);
    append(s, e);
    pthread_mutex_unlock(&s->lock);
}

void responses_store_count(struct responses_store *s, size_t *n, size_t *n_bytes)
{
    pthread_mutex_lock(&s->lock);
    *n = s->n;
    *n_bytes = s->n_bytes;
    pthread_mutex_unlock(&s->lock);
}

/* The place of an entry in the list; what stands there is NULL if there is none. */
static struct entry **find(struct responses_store *s, const char *user, const char *id)
{
    struct entry **at = &s->oldest;
    while (*at && (strcmp((*at)->id.at, id) != 0 || strcmp((*at)->user.at, user) != 0))
        at = &(*at)->next;
    return at;
}

static bool set_text(struct str *to, const struct str *from)
{
    struct str new;
    init_text(&new, from->at, from->n);
    if (!str_ok(&new) || !str_ok(from)) {
        str_release(&new);
        return false;
    }
    str_release(to);
    *to = new;
    return true;
}

/* Takes e, which is in no list, back as the newest one; too large it goes. */
static void put_back(struct responses_store *s, struct entry *e)
{
    const size_t n_bytes = entry_bytes(e);
    if (n_bytes > s->n_bytes_max) {
        entry_free(e);
        return;
    }
    make_room(s, n_bytes);
    append(s, e);
}

bool responses_store_set(struct responses_store *s, const char *user, const char *id,
                         const struct responses_kept *k)
{
    pthread_mutex_lock(&s->lock);
    struct entry **at = find(s, user, id);
    const bool found = *at && (*at)->open;
    if (found) {
        struct entry *e = take_out(s, at);
        (void)(k->object && set_text(&e->object, k->object));
        (void)(k->items && set_text(&e->items, k->items));
        e->open = k->open;
        if (!e->open && e->tape)
            e->tape_bytes = tape_bytes(e->tape);
        put_back(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

bool responses_store_change(struct responses_store *s, const char *user, const char *id,
                            bool (*fn)(void *arg, struct str *items, struct str *object), void *arg)
{
    bool ok = false;
    pthread_mutex_lock(&s->lock);
    struct entry **at = find(s, user, id);
    if (*at) {
        struct entry *e = take_out(s, at);
        struct str items, object;
        init_text(&items, e->items.at, e->items.n);
        init_text(&object, e->object.at, e->object.n);
        ok = str_ok(&items) && str_ok(&object) && fn(arg, &items, &object) && str_ok(&items) &&
             str_ok(&object) && items.n < s->n_bytes_max / 2 && object.n < s->n_bytes_max / 4;
        struct str *old[2] = {&e->items, &e->object}, *new[2] = {&items, &object};
        for (int i = 0; i < 2; i++) {
            str_release(ok ? old[i] : new[i]);
            if (ok)
                *old[i] = *new[i];
        }
        put_back(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

bool responses_append(void *arg, struct str *items, struct str *object)
{
    const struct str *new = arg;
    (void)object;
    if (new->n)
        view_put_comma(items);
    str_add(items, new->at, new->n);
    return str_ok(new);
}

bool responses_store_get(struct responses_store *s, const char *user, const char *id,
                         struct responses_found *out)
{
    pthread_mutex_lock(&s->lock);
    const struct entry *e = *find(s, user, id);
    if (e) {
        if (out->items)
            str_add(out->items, e->items.at, e->items.n);
        if (out->object)
            str_add(out->object, e->object.at, e->object.n);
        out->n_input = e->n_input;
        out->open = e->open;
        out->tape = e->tape ? tape_ref(e->tape) : NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

bool responses_store_delete(struct responses_store *s, const char *user, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct entry **at = find(s, user, id);
    const bool found = *at != NULL;
    if (found) {
        if ((*at)->open && (*at)->tape)
            tape_cancel((*at)->tape);
        unlink_entry(s, at);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* Appends the element of the array `items` whose id it is. */
static bool add_item(const struct str *items, struct view id, struct str *out)
{
    struct json_object *list = NULL;
    struct str text;
    bool found = false;
    init_text(&text, "[", 1);
    str_add(&text, items->at, items->n);
    str_addc(&text, ']');
    if (str_ok(&text) && json_parse(text.at, text.n, NULL, &list, NULL) == INGLE_OK)
        for (size_t i = 0; !found && i < json_object_array_length(list); i++) {
            struct json_object *item = json_object_array_get_idx(list, i);
            const struct view own = view_member(item, "id");
            found = own.at && own.n == id.n && memcmp(own.at, id.at, id.n) == 0;
            if (found)
                view_put_json(out, item);
        }
    json_object_put(list);
    str_release(&text);
    return found;
}

bool responses_store_item(struct responses_store *s, const char *user, struct view id,
                          struct str *out)
{
    struct str quoted;
    bool found = false;
    if (!id.n)
        return false;
    str_init(&quoted);
    str_adds(&quoted, "\"id\":");
    view_put(&quoted, id);
    pthread_mutex_lock(&s->lock);
    for (const struct entry *e = s->oldest; !found && str_ok(&quoted) && e; e = e->next)
        if (strcmp(e->user.at, user) == 0 && strstr(e->items.at, quoted.at))
            found = add_item(&e->items, id, out);
    pthread_mutex_unlock(&s->lock);
    str_release(&quoted);
    return found;
}
