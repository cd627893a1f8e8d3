/* SPDX-License-Identifier: Apache-2.0
 * The web page in read-only memory.  PAGE_FILE comes from the build. */
    .section .rodata
    .globl server_page
    .hidden server_page
    .type server_page, %object
server_page:
    .incbin PAGE_FILE
    .size server_page, . - server_page
    .globl server_page_end
    .hidden server_page_end
    .type server_page_end, %object
server_page_end:
    .byte 0
    .size server_page_end, 1
    .section .note.GNU-stack, "", %progbits
