// printf in kernels: formats of all kinds, wide and long arguments, strings, divergence, more lines than one launch; read back from where stdout goes.
#include <unistd.h>

#include "program.h"

__global__ void say(int salt, double real, const char *word) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i % 3 == 0) printf("%d %u %x %o %5d|%-5d|%05d %c\n", i, salt, salt, salt & 511, i, i, i, 'a' + i % 26);
    else if (i % 3 == 1) printf("%d %lld %llu %ld %s %%\n", i, (long long)salt << 31, (unsigned long long)-salt, (long)salt * i, i % 2 ? "odd" : "even");
    else printf("%d %.3f %8.2e %g %+.1f %s\n", i, real * i, real, real + i, real, word);
}

__global__ void count(int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) printf("line %d\n", i);
}

static std::vector<std::string> sorted_lines(const std::string &text) {
    std::vector<std::string> lines;
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
        end = std::min(text.find('\n', at), text.size());
        lines.push_back(text.substr(at, end - at));
    }
    std::sort(lines.begin(), lines.end());
    return lines;
}

// What comes out on descriptor 1 while `work` runs.
template <class Work> static std::string captured(Work work) {
    std::fflush(stdout);
    std::FILE *file = std::tmpfile();
    int before = dup(1);
    dup2(fileno(file), 1);
    work();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    std::fflush(stdout);
    dup2(before, 1);
    close(before);
    std::string text(std::ftell(file) < 0 ? 0 : (size_t)lseek(fileno(file), 0, SEEK_END), 0);
    if (pread(fileno(file), text.data(), text.size(), 0) != (ssize_t)text.size()) text = "unreadable";
    std::fclose(file);
    return text;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("device_printf");
    const int salt = random.between(1, 2000000000), n = 80;
    const double real = random.real(-10, 10);
    std::vector<char> word = {'w', 'o', 'r', 'd', (char)('a' + random.below(26)), 0};
    Array<char> text(word);
    std::string got = captured([&] { say<<<4, 20>>>(salt, real, text); }), want;
    for (int i = 0; i < n; i++) {
        char line[256];
        if (i % 3 == 0) std::snprintf(line, sizeof line, "%d %u %x %o %5d|%-5d|%05d %c\n", i, salt, salt, salt & 511, i, i, i, 'a' + i % 26);
        else if (i % 3 == 1)
            std::snprintf(line, sizeof line, "%d %lld %llu %ld %s %%\n", i, (long long)salt << 31, (unsigned long long)-salt, (long)salt * i, i % 2 ? "odd" : "even");
        else std::snprintf(line, sizeof line, "%d %.3f %8.2e %g %+.1f %s\n", i, real * i, real, real + i, real, word.data());
        want += line;
    }
    v.same("formats", sorted_lines(got), sorted_lines(want));

    got = captured([] {
        count<<<1, 64>>>(500);
        count<<<1, 32>>>(300);
    });
    want.clear();
    for (int i = 0; i < 500; i++) want += "line " + std::to_string(i) + "\n" + (i < 300 ? "line " + std::to_string(i) + "\n" : "");
    v.same("many lines", sorted_lines(got), sorted_lines(want));
    return v.end();
}
