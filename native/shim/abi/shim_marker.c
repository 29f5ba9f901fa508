/* By this name our libcuda.so.1 can be told from a real driver. */
extern const char gpuvirt_shim_marker[];
__attribute__((visibility("default"))) const char gpuvirt_shim_marker[] = "gpuvirt";
