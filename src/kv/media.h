/* media - names of media, for this room only; what others call stands in kv.h. */
#ifndef INGLE_KV_MEDIA_H
#define INGLE_KV_MEDIA_H

#include "kv/kv.h"

MUST_CHECK ingle_status kv_media_create(struct kv_media **out, struct err *err);
void kv_media_free(struct kv_media *m);
/* The number of an id, without a reference; -1: it has none. */
int32_t kv_media_find(struct kv_media *m, const uint8_t *id);
/* In the place of a key whose id has no number: equal to none. */
int32_t kv_media_unknown(int64_t index);
/* Of a key (a token below 0): its index in the medium, and the medium's number. */
int64_t kv_media_index(int32_t key);
int32_t kv_media_number(int32_t key);
/* False: there is no such number. */
bool kv_media_of(struct kv_media *m, int32_t number, struct kv_medium *out);
struct kv_watch;
/* w->put() of tokens with keys; 0: no memory. */
uint64_t kv_media_publish(struct kv_media *m, const struct kv_watch *w, bool disk,
                          struct kv_scope scope, const int32_t *key, int64_t n);

#endif
