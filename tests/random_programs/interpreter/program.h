// A random program as data: what ../lowering writes. A line of text a step, "THREAD NAME NUMBER..."; steps of one thread run in their order, those
// of different threads at the same time, but for `await`.
#pragma once
#include <cstdint>
#include <istream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

struct Step {
    int line; // of the program's own, from 0: what mismatches are told by
    std::string name;
    std::vector<int64_t> numbers;
};

struct Program {
    std::string name;
    bool own_context = false; // or the device's primary one
    std::vector<std::vector<Step>> threads;
};

// Reads "program NAME THREADS OWN_CONTEXT", the steps, and "end". False at the end of the input.
inline bool read_program(std::istream &in, Program &program) {
    std::string line, word;
    while (std::getline(in, line) && line.empty()) {
    }
    if (line.empty()) return false;
    size_t threads = 0;
    std::istringstream head(line);
    if (!(head >> word >> program.name >> threads >> program.own_context) || word != "program") return false;
    program.threads.assign(threads, {});
    for (int number = 0; std::getline(in, line) && line != "end"; number++) {
        std::istringstream text(line);
        size_t thread = 0;
        Step step{number, "", {}};
        text >> thread >> step.name;
        for (int64_t value; text >> value;) step.numbers.push_back(value);
        program.threads.at(thread).push_back(std::move(step));
    }
    return true;
}
