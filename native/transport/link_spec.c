#include "link_spec.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "link.h"

/* The order of the questions is the one of links.py: whoever changes one of the two changes the other. */

#define WRITE "write auto, shm, tcp, tcp(channels=4), verbs(rails=2) or delay(rtt=30ms,rate=10gbit,tcp)"
#define WRITE_TCP "write tcp(channels=4) or tcp(plain)"
#define WRITE_VERBS "write verbs or verbs(rails=2)"
#define WRITE_DELAY "write delay(rtt=30ms,rate=10gbit,tcp)"
/* Of a user's text an error shows no more than this. */
#define SHOWN 40

struct parser {
    const char *at;
    struct gv_link_spec *spec;
    char *error;
};

struct word {
    const char *text;
    int size;
};

__attribute__((format(printf, 2, 3))) static bool fail(struct parser *p, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(p->error, GV_LINK_ERROR_TEXT, format, args);
    va_end(args);
    return false;
}

static int shown(struct word w) { return w.size < SHOWN ? w.size : SHOWN; }

static void skip_spaces(struct parser *p) {
    while (*p->at == ' ') p->at++;
}

/* What stands before the next space or sign; perhaps nothing. */
static struct word next_word(struct parser *p) {
    skip_spaces(p);
    struct word w = {p->at, (int)strcspn(p->at, " (),=")};
    p->at += w.size;
    skip_spaces(p);
    return w;
}

static bool is(struct word w, const char *text) { return strlen(text) == (size_t)w.size && memcmp(w.text, text, (size_t)w.size) == 0; }

static bool sign(struct parser *p, char c) {
    skip_spaces(p);
    if (*p->at != c) return false;
    p->at++;
    return true;
}

struct unit {
    const char *name;
    uint64_t worth;
};

/* A number of up to nine digits and three decimals, times its unit's worth. */
static bool read_quantity(struct word w, const struct unit *units, uint64_t *value) {
    uint64_t whole = 0, thousandths = 0;
    int i = 0, digits = 0, decimals = 0;
    for (; i < w.size && w.text[i] >= '0' && w.text[i] <= '9'; i++, digits++) {
        if (digits < 9) whole = whole * 10 + (uint64_t)(w.text[i] - '0');
    }
    if (digits == 0 || digits > 9) return false;
    if (i < w.size && w.text[i] == '.') {
        uint64_t worth = 100;
        for (i++; i < w.size && w.text[i] >= '0' && w.text[i] <= '9'; i++, decimals++, worth /= 10)
            thousandths += worth * (uint64_t)(w.text[i] - '0');
        if (decimals == 0 || decimals > 3) return false;
    }
    struct word name = {w.text + i, w.size - i};
    for (const struct unit *u = units; u->name; u++) {
        if (is(name, u->name)) {
            *value = whole * u->worth + thousandths * u->worth / 1000;
            return true;
        }
    }
    return false;
}

/* A setting that counts: what it is called, of which link, its bound and its examples. */
struct counted {
    const char *link, *name, *write;
    uint32_t most;
};

static bool parse_count(struct parser *p, const struct counted *c, uint32_t *count) {
    if (*count) return fail(p, "%s has two of %s; %s", c->link, c->name, c->write);
    if (!sign(p, '=')) return fail(p, "%s of %s has no value; %s", c->name, c->link, c->write);
    struct word value = next_word(p);
    uint32_t number = 0;
    for (int i = 0; i < value.size && number <= c->most; i++) {
        char digit = value.text[i];
        number = digit >= '0' && digit <= '9' ? number * 10 + (uint32_t)(digit - '0') : c->most + 1;
    }
    if (number < 1 || number > c->most) {
        return fail(p, "'%.*s' is not a number of %s (1 to %u); %s", shown(value), value.text, c->name, c->most, c->write);
    }
    *count = number;
    return true;
}

static bool parse_tcp(struct parser *p) {
    static const struct counted channels = {"tcp", "channels", WRITE_TCP, GV_LINK_CHANNELS_MAX};
    do {
        struct word name = next_word(p);
        if (is(name, "channels")) {
            if (!parse_count(p, &channels, &p->spec->channels)) return false;
        } else if (is(name, "plain")) {
            if (p->spec->plain) return fail(p, "tcp has two of plain; " WRITE_TCP);
            p->spec->plain = true;
        } else {
            return fail(p, "'%.*s' is not a setting of tcp; " WRITE_TCP, shown(name), name.text);
        }
    } while (sign(p, ','));
    return sign(p, ')') ? true : fail(p, "the ) of tcp is missing after its settings; " WRITE_TCP);
}

static bool parse_verbs(struct parser *p) {
    static const struct counted rails = {"verbs", "rails", WRITE_VERBS, GV_LINK_RAILS_MAX};
    if (p->spec->delayed) return fail(p, "a verbs link is not delayed, for its bytes pass no socket; " WRITE_DELAY);
    if (!sign(p, '(')) return true;
    do {
        struct word name = next_word(p);
        if (!is(name, "rails")) return fail(p, "'%.*s' is not a setting of verbs; " WRITE_VERBS, shown(name), name.text);
        if (!parse_count(p, &rails, &p->spec->rails)) return false;
    } while (sign(p, ','));
    return sign(p, ')') ? true : fail(p, "the ) of verbs is missing after its settings; " WRITE_VERBS);
}

/* One that is not a delay; `name` is read already. */
static bool parse_plain(struct parser *p, struct word name) {
    char text[GV_TRANSPORT_NAME] = "";
    if (name.size < (int)sizeof text) memcpy(text, name.text, (size_t)name.size);
    const struct gv_transport *row = is(name, "auto") ? NULL : gv_transport_named(text);
    if (!row && !is(name, "auto")) return fail(p, "'%.*s' is not a link; " WRITE, shown(name), name.text);
    if (row) memcpy(p->spec->transport, text, sizeof text);
    if (row && is(name, "verbs")) return parse_verbs(p);
    if (row && row->connections) return sign(p, '(') ? parse_tcp(p) : true;
    return *p->at != '(' ? true : fail(p, "the link %.*s has no settings; write %.*s", name.size, name.text, name.size, name.text);
}

static bool parse_setting(struct parser *p, struct word name, bool *has_rtt, bool *has_rate) {
    static const struct unit times[] = {{"us", 1000}, {"ms", 1000000}, {"s", 1000000000}, {NULL, 0}};
    static const struct unit rates[] = {{"bit", 1}, {"kbit", 1000}, {"mbit", 1000000}, {"gbit", 1000000000}, {NULL, 0}};
    bool rtt = is(name, "rtt");
    if (!rtt && !is(name, "rate")) return fail(p, "'%.*s' is not a setting of delay; " WRITE_DELAY, shown(name), name.text);
    bool *has = rtt ? has_rtt : has_rate;
    if (*has) return fail(p, "delay has two of %s; " WRITE_DELAY, rtt ? "rtt" : "rate");
    *has = true;
    struct word value = next_word(p);
    uint64_t number = 0;
    if (rtt) {
        if (!read_quantity(value, times, &number) || number > GV_LINK_RTT_MAX_NS) {
            return fail(p, "rtt='%.*s' is not a time in us, ms or s, at most 2s; " WRITE_DELAY, shown(value), value.text);
        }
        p->spec->rtt_ns = (int64_t)number;
        return true;
    }
    if (!read_quantity(value, rates, &number) || number < GV_LINK_RATE_MIN || number > GV_LINK_RATE_MAX) {
        return fail(p, "rate='%.*s' is not a rate in bit, kbit, mbit or gbit, from 10kbit to 1000gbit; " WRITE_DELAY, shown(value), value.text);
    }
    p->spec->rate_bps = number;
    return true;
}

static bool parse_delay(struct parser *p) {
    bool has_rtt = false, has_rate = false;
    p->spec->delayed = true;
    if (!sign(p, '(')) return fail(p, "delay does not say how long; " WRITE_DELAY);
    for (;;) {
        struct word name = next_word(p);
        if (!sign(p, '=')) {
            if (name.size == 0) return fail(p, "delay does not say which link it goes around; " WRITE_DELAY);
            if (is(name, "delay")) return fail(p, "a delay does not go around another one; " WRITE_DELAY);
            if (!has_rtt && !has_rate) return fail(p, "delay has neither rtt nor rate before '%.*s'; " WRITE_DELAY, shown(name), name.text);
            if (!parse_plain(p, name)) return false;
            return sign(p, ')') ? true : fail(p, "the ) of delay is missing after its link; " WRITE_DELAY);
        }
        if (!parse_setting(p, name, &has_rtt, &has_rate)) return false;
        if (!sign(p, ',')) return fail(p, "delay does not say which link it goes around; " WRITE_DELAY);
    }
}

bool gv_link_spec_parse(const char *text, struct gv_link_spec *spec, char error[GV_LINK_ERROR_TEXT]) {
    char clean[GV_LINK_TEXT_MAX + 1] = "";
    struct parser p = {clean, spec, error};
    memset(spec, 0, sizeof *spec);
    error[0] = 0;
    if (!text) text = "";
    size_t size = strnlen(text, GV_LINK_TEXT_MAX + 1);
    if (size > GV_LINK_TEXT_MAX) return fail(&p, "a link's text has at most %u characters; " WRITE, GV_LINK_TEXT_MAX);
    /* An error's text ends up in terminals and logs. */
    for (size_t i = 0; i < size; i++) clean[i] = text[i] >= 32 && text[i] < 127 ? text[i] : '?';
    clean[size] = 0;
    skip_spaces(&p);
    if (!*p.at) return true;
    struct word name = next_word(&p);
    if (!(is(name, "delay") ? parse_delay(&p) : parse_plain(&p, name))) return false;
    skip_spaces(&p);
    struct word rest = {p.at, (int)strlen(p.at)};
    return rest.size == 0 ? true : fail(&p, "'%.*s' is too much behind the link; " WRITE, shown(rest), rest.text);
}
