/*
 * parts - inside the room: what each file has for the others.
 */
#ifndef INGLE_HTTP_PARTS_H
#define INGLE_HTTP_PARTS_H

#include "http/inner.h"

/* http_listen.c: fills h->listener and h->port. */
MUST_CHECK ingle_status http_listen(struct http *h, struct err *err);
/* Removes the socket in the file system that http_listen() made, while it still listens. */
void http_unlink_unix(struct http *h);

/* http_exchange.c */
struct http_exchange *http_exchange_create(struct http *h, struct http_conn *c);
/* The I/O thread handles it: calls http_on_close()'s function, resumes the connection. */
void http_exchange_attend(struct http_exchange *x);
/* The client is not there any more. */
void http_exchange_drop(struct http_exchange *x);
/* From the handler's thread: the I/O thread goes on with it. */
void http_exchange_return(struct http_exchange *x);
/* Keep-alive and stall; called ten times a second. */
void http_exchange_tick(struct http_exchange *x, uint64_t now);
/* Queues the answer if it has begun, else suspends the connection. */
enum MHD_Result http_exchange_answer(struct http_exchange *x);
/* The connection is done with it; ends the connection's reference. */
void http_exchange_finish(struct http_exchange *x);
size_t http_exchange_unread(const struct http_exchange *x);

struct http_conn *http_conn_of(struct http *h, struct MHD_Connection *mhd);

/* http_request.c: libmicrohttpd's callbacks. */
enum MHD_Result http_request_access(void *arg, struct MHD_Connection *mhd, const char *url,
                                    const char *method, const char *version, const char *data,
                                    size_t *n_data, void **mine);
void *http_request_uri(void *arg, const char *uri, struct MHD_Connection *mhd);
void http_request_completed(void *arg, struct MHD_Connection *mhd, void **mine,
                            enum MHD_RequestTerminationCode why);

/* The body has been read: nobody needs it any more.  I/O thread. */
void http_request_forget_body(struct http_exchange *x);
/* Another body needs its room: it gets a 503 when the rest has come.  I/O thread. */
void http_request_give_way(struct http_exchange *x);
/* Calls the handler, or refuses; on the thread that has x. */
void http_request_handle(struct http_exchange *x);

/* http_room.c: I/O thread only. */
/* Room for n more bytes of the body; false: there is none, also if others give way. */
bool http_room_take(struct http_exchange *x, size_t n);
void http_room_give(struct http_exchange *x);
/* A body begins; a piece of it has come. */
void http_room_start(struct http_conn *c);
void http_room_piece(struct http_conn *c, size_t n);

/* http_lane.c */
bool http_lane_start(struct http_lane *lane, struct http *h, bool large);
/* What waits is handled first.  The lane's worker ends, not those aside. */
void http_lane_stop(struct http_lane *lane);
/* Waits for all that have moved aside. */
void http_lane_join_aside(struct http *h);
/* Lets who has computed for too long move aside; ten times a second. */
void http_lane_tick(struct http *h, uint64_t now);
enum http_lane_answer { HTTP_LANE_TAKEN, HTTP_LANE_FULL, HTTP_LANE_STOPS };
/* x goes away to be handled, if there is room; else *retry says when there will be. */
enum http_lane_answer http_lane_put(struct http_exchange *x, double *retry);
/* The thread for small bodies gives the allocator's memory back when it has nothing to do. */
void http_lane_trim(struct http *h);

#endif
