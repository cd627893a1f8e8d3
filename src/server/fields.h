/*
 * fields - members of a request's body, read with their errors.
 */
#ifndef INGLE_SERVER_FIELDS_H
#define INGLE_SERVER_FIELDS_H

#include "server/request.h"

/* ---- reading fields ---- */

/* The body as a JSON object within the limits of a request, or NULL and a fault; ended with
 * json_object_put(). */
struct json_object *request_body(const char *text, size_t n, struct fault *f);
/* The member, or NULL when it is absent or null. */
struct json_object *request_get(struct json_object *o, const char *name);
bool request_is_text(struct json_object *v);
bool request_text_is(struct json_object *v, const char *word);
bool request_is_number(struct json_object *v);
/* Each leaves *out alone when the member is absent.  name is what faults call it. */
void request_get_bool(struct json_object *o, const char *name, bool *out, struct fault *f);
void request_get_int(struct json_object *o, const char *name, int64_t min, int64_t max,
                    int64_t *out, struct fault *f);
void request_get_number(struct json_object *o, const char *name, double min, double max, float *out,
                       struct fault *f);
/* Appends to *out after clearing it. */
void request_get_text(struct json_object *o, const char *name, size_t max_bytes, struct str *out,
                     struct fault *f);
/* The member if it is of that type, else NULL (a fault when it is something else). */
struct json_object *request_get_array(struct json_object *o, const char *name, size_t max_items,
                                     struct fault *f);
struct json_object *request_get_object(struct json_object *o, const char *name, struct fault *f);
/* Appends the value as JSON text, numbers by their digits. */
void request_add_value(struct str *out, struct json_object *o);

/* Any number will do; -1 asks for a random one. */
void request_get_seed(struct json_object *o, const char *name, struct chat_request *r,
                      struct fault *f);
/* A text that check() takes, into *out; true and false are "on" and "off". */
void request_get_way(struct json_object *o, const char *name, enum ingle_way_kind kind,
                     struct ingle_way *out, struct fault *f);
/* A share from min on (0: above 0), up to 1; false: all, true: as the server's option says,
 * whatever stands beside it. */
void request_get_keep(struct json_object *o, const char *name, double min, struct chat_request *r,
                      struct fault *f);
/* Tokens of a picture: 70, 140, 280, 560, 1120 or "auto". */
void request_get_image_tokens(struct json_object *o, const char *name, struct chat_request *r,
                              struct fault *f);
/* "refuse" or "drop". */
void request_get_unsupported(struct json_object *o, const char *name, struct chat_request *r,
                             struct fault *f);
/* A hint: nothing that it may be is wrong. */
void request_get_cache_key(struct json_object *o, const char *name, struct chat_request *r);

#endif
