/* Numbers of turns, which the daemon, the worker and the backends share: when a session's kernels may run on a device whose compute several share. */
#ifndef GV_TURNS_H
#define GV_TURNS_H

/* What the daemon says of a device. */
enum gv_may {
    GV_MAY_ALWAYS, /* nobody shares it by turns */
    GV_MAY_NOW,    /* it is this session's turn */
    GV_MUST_WAIT,  /* no kernel begins, and those that run stop between two blocks */
};

/* What the session says. Everything said before STOPPED is void. */
enum gv_turn_said {
    GV_TURN_WANTS = 1,     /* it has kernels to run */
    GV_TURN_IDLE,          /* it has had none for GV_TURN_LINGER_NS */
    GV_TURN_STOPPED,       /* none runs any more, and none waits; carries the number of the word that it answers */
    GV_TURN_STOPPED_WANTS, /* none runs any more, and some wait */
};

#define GV_TURN_LINGER_NS 2000000ll /* a program that launches kernel after kernel keeps its turn between them */

#endif
