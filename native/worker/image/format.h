/* What follows what in a session's image (native/wire/image_stream.h has how numbers and bytes lie). Numbers of a version never change their meaning.
 *
 *     magic, version; the backend's name, the transport's name; devices with their properties; the window
 *     the link: positions of records and payloads both ways, records that the client may lack
 *     counters of the session
 *     promised images (hashes)
 *     contexts, streams, events, each with what the backend keeps of it
 *     memory: what is backed, created and mapped; the handles of physical memory
 *     arrays
 *     modules: image, kernels' attributes, where the globals lie
 *     pages, without those of zeros
 *     records that were read and not executed; payloads that came before their commands
 *     digest
 *
 * Whoever reads an image believes nothing in it: it comes from a worker, in which a stranger's code ran. */
#ifndef WORKER_IMAGE_FORMAT_H
#define WORKER_IMAGE_FORMAT_H

#define IMAGE_MAGIC 0x6567616d69767067ull /* "gpvimage" */
#define IMAGE_VERSION 4u
#define IMAGE_NAME 16u          /* bytes of a backend's or a transport's name, zeros behind it */
#define IMAGE_SECTION 0x3e3eull /* in front of each kind of object, with its number */

enum image_section {
    IMAGE_LINK = 1,
    IMAGE_COUNTERS,
    IMAGE_PROMISES,
    IMAGE_CONTEXTS,
    IMAGE_STREAMS,
    IMAGE_EVENTS,
    IMAGE_MEMORY,
    IMAGE_MODULES,
    IMAGE_PAGES,
    IMAGE_RECORDS,
    IMAGE_ARRAYS
};

#endif
