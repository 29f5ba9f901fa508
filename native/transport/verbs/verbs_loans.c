/* The lender's side of payloads in registered memory: the ring says where they are, and they stay lent until the peer's note says that it needs them no more. */
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

bool gv_verbs_loans_init(struct verbs_loans *l) {
    pthread_mutex_init(&l->lock, NULL);
    atomic_init(&l->oldest, UINT64_MAX);
    l->list = calloc(VERBS_LOANS, sizeof *l->list);
    return l->list != NULL;
}

/* lock held. */
static bool add(struct verbs *v, const struct verbs_loan *loan) {
    struct verbs_loans *l = &v->loans;
    if (l->ended || l->given - l->returned == VERBS_LOANS) return false;
    if (l->given == l->returned) atomic_store(&l->oldest, loan->before);
    l->list[l->given++ % VERBS_LOANS] = *loan;
    return true;
}

bool gv_verbs_loan(struct verbs *v, const struct verbs_loan *loan, struct verbs_lent *lent) {
    struct verbs_loan new = *loan;
    new.region = gv_verbs_memory_use(&v->memory, loan->at, loan->size);
    if (!new.region) return false;
    *lent = (struct verbs_lent){.at = (uintptr_t)loan->at, .size = loan->size};
    for (uint32_t i = 0; i < v->n_rails; i++) lent->keys[i] = new.region->mr[i]->rkey;
    pthread_mutex_lock(&v->loans.lock);
    bool added = add(v, &new);
    pthread_mutex_unlock(&v->loans.lock);
    if (added)
        atomic_fetch_add_explicit(&v->bytes_lent, loan->size, memory_order_relaxed);
    else
        gv_verbs_memory_used(&v->memory, new.region);
    return added;
}

void gv_verbs_loans_said(struct verbs *v, uint64_t pulled) {
    uint64_t known = atomic_load(&v->loans.pulled);
    while (pulled > known && !atomic_compare_exchange_weak(&v->loans.pulled, &known, pulled)) continue;
}

/* Lets go of the loans before number `until`. */
static void give_back(struct verbs *v, uint64_t until) {
    struct verbs_loans *l = &v->loans;
    for (;;) {
        pthread_mutex_lock(&l->lock);
        bool sound = until <= l->given;
        if (!sound || l->returned >= until) {
            pthread_mutex_unlock(&l->lock);
            if (!sound) gv_link_kill(&v->link, "malformed note: the peer gives back what was never lent");
            return;
        }
        struct verbs_loan loan = l->list[l->returned++ % VERBS_LOANS];
        atomic_store(&l->oldest, l->returned == l->given ? UINT64_MAX : l->list[l->returned % VERBS_LOANS].before);
        pthread_mutex_unlock(&l->lock);
        gv_verbs_memory_used(&v->memory, loan.region); /* first: `done` may take the memory back, as that of a copy does */
        loan.done(loan.arg);
    }
}

void gv_verbs_loans_settle(struct verbs *v) {
    uint64_t pulled = atomic_load(&v->loans.pulled);
    if (pulled > atomic_load(&v->loans.returned) && !gv_link_dead(&v->link)) give_back(v, pulled);
}

void gv_verbs_loans_end(struct verbs *v) {
    pthread_mutex_lock(&v->loans.lock);
    v->loans.ended = true;
    uint64_t all = v->loans.given;
    pthread_mutex_unlock(&v->loans.lock);
    give_back(v, all);
}

bool gv_verbs_loans_out(struct verbs *v) {
    pthread_mutex_lock(&v->loans.lock);
    bool out = v->loans.given != v->loans.returned;
    pthread_mutex_unlock(&v->loans.lock);
    return out;
}

bool gv_verbs_is_lent(struct verbs *v, const uint8_t *at, uint64_t size) {
    struct verbs_loans *l = &v->loans;
    bool found = false;
    pthread_mutex_lock(&l->lock);
    for (uint64_t i = l->returned; i < l->given && !found; i++) {
        const struct verbs_loan *loan = &l->list[i % VERBS_LOANS];
        found = at >= loan->at && at - loan->at <= (ptrdiff_t)loan->size && size <= loan->size - (uint64_t)(at - loan->at);
    }
    pthread_mutex_unlock(&l->lock);
    return found;
}
