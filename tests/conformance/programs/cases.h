// Cases of conformance programs: what is the same for the driver API (conformance.h) and for the runtime API (../runtime/runtime.h), which say how a case starts.
//
//     program --list                        each case and the functions that it observes
//     program [flag...] [case...]           these cases, or all: "case ok" a line, or "case not here: what the device lacks"; exit code 1 at the
//                                           first that fails
//
// Each case has a process of its own. With --effects-only nothing wrong is asked for, so that a function that does nothing must be
// noticed by what it does not do, not by what it fails to refuse. With --unchecked also what NVIDIA's driver need not survive is asked for
// (UNCHECKED_BY_THE_DRIVER). With --go-on what is not so is told ("case: what", one line each) and the case goes on, as do the cases behind it: all
// that a driver does otherwise is seen in one run.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <initializer_list>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace conformance {

struct Case {
    const char *name;
    std::vector<const char *> functions;
    bool cold; // starts without cuInit
    void (*body)();
};

inline std::vector<Case> &cases() {
    static std::vector<Case> all;
    return all;
}

struct Registered {
    Registered(const char *name, std::initializer_list<const char *> functions, bool cold, void (*body)()) {
        cases().push_back({name, functions, cold, body});
    }
};

inline const char *running = "";
inline bool effects_only = false, unchecked = false, go_on = false;
inline bool failed = false;

inline void tell(const char *format, va_list arguments) {
    std::printf("%s: ", running);
    std::vprintf(format, arguments);
    std::printf("\n");
    std::fflush(stdout);
    failed = true;
}

// What a case cannot go on after.
[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    tell(format, arguments);
    va_end(arguments);
    std::exit(1); // not _exit: the driver's own end of the process is part of a program's life
}

// What is not so, after which a case can go on if it is asked to.
__attribute__((format(printf, 1, 2))) inline void differs(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    tell(format, arguments);
    va_end(arguments);
    static int times = 0;
    if (!go_on || ++times == 20) std::exit(1);
}

inline sigjmp_buf before_the_call;
extern "C" inline void faulted(int) { siglongjmp(before_the_call, 1); }

// Something wrong is asked for. Where the case goes on after what is not so, it does after a fault in the driver, too.
template <typename Ask> void ask_wrongly(Ask ask, const char *text, int line) {
    if (go_on) std::signal(SIGSEGV, faulted);
    if (go_on && sigsetjmp(before_the_call, 1))
        differs("line %d: %s faults", line, text);
    else
        ask();
    if (go_on) std::signal(SIGSEGV, SIG_DFL);
}

[[noreturn]] inline void not_here(const char *what) {
    std::printf("%s not here: %s\n", running, what);
    std::fflush(stdout);
    std::exit(0);
}

// Whether the condition comes true within ten seconds. What would wait for ever when a function did nothing is asked for by this.
template <typename Condition> bool within_time(Condition condition) {
    for (int i = 0; i < 10000; i++) {
        if (condition()) return true;
        timespec pause = {0, 1000000};
        nanosleep(&pause, nullptr);
    }
    return condition();
}

} // namespace conformance

#define EXPECT(condition)                                                                    \
    do {                                                                                     \
        if (!(condition)) conformance::differs("line %d: not so: %s", __LINE__, #condition); \
    } while (0)
// Of integers: what is found is told where it is not what is expected.
#define EXPECT_NUMBER(found, expected)                                                                                                      \
    do {                                                                                                                                    \
        long long found_ = static_cast<long long>(found), expected_ = static_cast<long long>(expected);                                     \
        if (found_ != expected_) conformance::differs("line %d: %s is %lld, not %s, %lld", __LINE__, #found, found_, #expected, expected_); \
    } while (0)
#define REFUSED(call, expected)                                                         \
    do {                                                                                \
        auto ask = [&] { conformance::refused((call), (expected), #call, __LINE__); };  \
        if (!conformance::effects_only) conformance::ask_wrongly(ask, #call, __LINE__); \
    } while (0)
// A REFUSED that NVIDIA's driver does not look for and faults at, so that only a driver that is known to survive it is asked (--unchecked).
#define UNCHECKED_BY_THE_DRIVER(call, expected)              \
    do {                                                     \
        if (conformance::unchecked) REFUSED(call, expected); \
    } while (0)
#define EVENTUALLY(condition) EXPECT(conformance::within_time([&] { return (condition); }))

// Ends a case that needs what this device does not have.
#define NEEDS(condition)                                     \
    do {                                                     \
        if (!(condition)) conformance::not_here(#condition); \
    } while (0)

#define CASE_OF(name, cold, ...)                                                                     \
    static void case_##name();                                                                       \
    static const conformance::Registered registered_##name(#name, {__VA_ARGS__}, cold, case_##name); \
    static void case_##name()
// CASE(name, "cuFunction", ...) { ... }: begins with device 0's primary context current.
#define CASE(name, ...) CASE_OF(name, false, __VA_ARGS__)
// Begins before cuInit.
#define COLD_CASE(name, ...) CASE_OF(name, true, __VA_ARGS__)
// Of functions that change nothing a program can see (hints, flushes): that they are accepted, and what they refuse, is all there is.
#define HINT_CASE(name, ...) CASE_OF(name, false, __VA_ARGS__)
#define COLD_HINT_CASE(name, ...) CASE_OF(name, true, __VA_ARGS__)

// Of what an out parameter holds before the call: no plausible answer, no valid pointer.
template <typename T> T garbage() {
    T value;
    std::memset(static_cast<void *>(&value), 0xa5, sizeof value);
    return value;
}

// What a case begins with, unless it is cold.
void start();

inline int run_case(const conformance::Case &one) {
    std::fflush(stdout);
    pid_t child = fork(); // before the driver is started: a child of a process that has is not allowed to use it
    if (child == 0) {
        conformance::running = one.name;
        if (!one.cold) start();
        one.body();
        if (!conformance::failed) std::printf("%s ok\n", one.name);
        std::fflush(stdout);
        std::exit(conformance::failed);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return 1;
    if (WIFSIGNALED(status)) std::printf("%s: ended by signal %d\n", one.name, WTERMSIG(status));
    return status != 0;
}

inline int run_cases(int count, char **arguments) {
    std::vector<std::string> wanted(arguments + 1, arguments + count);
    if (!wanted.empty() && wanted[0] == "--list") {
        for (const auto &one : conformance::cases()) {
            std::printf("%s\t", one.name);
            for (const char *function : one.functions) std::printf("%s%s", function == one.functions[0] ? "" : " ", function);
            std::printf("\n");
        }
        return 0;
    }
    for (; !wanted.empty() && wanted[0].rfind("--", 0) == 0; wanted.erase(wanted.begin())) {
        conformance::effects_only |= wanted[0] == "--effects-only";
        conformance::unchecked |= wanted[0] == "--unchecked";
        conformance::go_on |= wanted[0] == "--go-on";
    }
    size_t found = 0;
    bool wrong = false;
    for (const auto &one : conformance::cases()) {
        bool asked = wanted.empty();
        for (const auto &name : wanted) asked |= name == one.name;
        if (!asked) continue;
        found++;
        wrong |= run_case(one) != 0;
        if (wrong && !conformance::go_on) return 1;
    }
    if (found == 0 || (!wanted.empty() && found != wanted.size())) {
        std::printf("no such case\n");
        return 2;
    }
    return wrong;
}

int main(int count, char **arguments) { return run_cases(count, arguments); }
