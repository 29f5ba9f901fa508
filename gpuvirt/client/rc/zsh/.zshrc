# The user's own file, then the settings that it may have changed, then the mark in the prompt.
[[ ${HISTFILE-} == $_gpuvirt_rc/* ]] && HISTFILE=${_GPUVIRT_ZDOTDIR:-$HOME}/${HISTFILE:t}
if [[ -n $_GPUVIRT_ZDOTDIR ]]; then ZDOTDIR=$_GPUVIRT_ZDOTDIR; else unset ZDOTDIR; fi
[[ -f ${ZDOTDIR:-$HOME}/.zshrc ]] && . ${ZDOTDIR:-$HOME}/.zshrc
eval "$_GPUVIRT_AGAIN"
unset _GPUVIRT_AGAIN _GPUVIRT_ZDOTDIR _gpuvirt_rc
# At every prompt, because prompts are often made anew each time.
_gpuvirt_mark() { [[ $PROMPT == "$_GPUVIRT_MARK"* ]] || PROMPT=$_GPUVIRT_MARK$PROMPT }
precmd_functions+=(_gpuvirt_mark)
