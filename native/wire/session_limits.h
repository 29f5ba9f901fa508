/* What a session may have at most, whatever its memory: the client library refuses what is more with CUDA's own out of memory before anything travels
 * (so that one-way commands need no answer), and the worker refuses it again, because a client may be any program. native/worker/session_limits.h has
 * what the worker alone counts. */
#ifndef GV_SESSION_LIMITS_H
#define GV_SESSION_LIMITS_H

#define GV_CONTEXTS_MAX 64u
#define GV_STREAMS_MAX 2048u /* each has a thread on software GPUs while it works */
#define GV_EVENTS_MAX (1u << 18)
#define GV_MODULES_MAX (1u << 16)
#define GV_PHYSICALS_MAX (1u << 18)
#define GV_MAPPINGS_MAX (1u << 18)
#define GV_RESERVATIONS_MAX (1u << 12) /* addresses=reply: with fixed addresses they are the client's own */
#define GV_ALLOCATIONS_MAX (1u << 20)  /* the same */
#define GV_TEXTURES_MAX (1u << 14)     /* of a context, surfaces included */
#define GV_ARRAYS_MAX (1u << 16)       /* levels of mipmapped arrays included */
#define GV_EXPORTS_MAX (1u << 14)      /* memory and events that it shares with others of its lease */
#define GV_COPY_MAX (64ull << 20)      /* bytes of one copy command between host and device; the client divides larger ones */
#define GV_PARAMS_MAX 32768u           /* bytes of a launch's parameters */

#endif
