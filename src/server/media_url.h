/*
 * media_url - pictures and sounds at addresses.
 *
 * A server that fetches what a client names can be made to ask machines that only it reaches.  So
 * only https to hosts of a list is fetched: the name is resolved once, every address of loopback,
 * private, link-local, carrier, multicast and translated ranges is refused, and the connection goes
 * to the address that was checked.  There are no redirects, proxies, cookies or credentials; an
 * error has nothing of the reply.
 */
#ifndef INGLE_SERVER_MEDIA_URL_H
#define INGLE_SERVER_MEDIA_URL_H

#include "server/request.h"

struct sockaddr;

/* A fault: it is no https URL of a host in the list ("example.org,*.example.com"). */
void media_url_check(const char *url, const char *hosts, const char *where, const char *param,
                     struct fault *f);
/* Whether an address is one of the open internet. */
bool media_url_is_public(const struct sockaddr *a);
/* INGLE_ARG: the list is none. */
MUST_CHECK ingle_status media_url_check_hosts(const char *hosts, struct err *err);

/* At most so many fetches at once: the others wait, a minute at most.  NULL: no memory. */
enum { MEDIA_URLS_AT_ONCE = 4 };
struct media_gate;
struct media_gate *media_gate_create(void);
void media_gate_free(struct media_gate *g);

/* False and a fault, or the bytes in *out.  gate may be NULL. */
bool media_url_fetch(const char *url, const char *hosts, struct media_gate *gate,
                     const char *where, const char *param, struct str *out, struct fault *f);

#endif
