/* Given to the compiler in front of every file: what COMPLETIONS_STEP calls. */
void count_completion_step(void);
