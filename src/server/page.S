/* SPDX-License-Identifier: Apache-2.0
 * The web page and the description of the endpoints in read-only memory.  The names of the
 * files come from the build. */
    .section .rodata
    .globl page_html
    .hidden page_html
    .type page_html, %object
page_html:
    .incbin PAGE_FILE
    .size page_html, . - page_html
    .globl page_html_end
    .hidden page_html_end
    .type page_html_end, %object
page_html_end:
    .byte 0
    .size page_html_end, 1

    .globl page_openapi
    .hidden page_openapi
    .type page_openapi, %object
page_openapi:
    .incbin OPENAPI_FILE
    .size page_openapi, . - page_openapi
    .globl page_openapi_end
    .hidden page_openapi_end
    .type page_openapi_end, %object
page_openapi_end:
    .byte 0
    .size page_openapi_end, 1
    .section .note.GNU-stack, "", %progbits
