# Read by the zsh that `gpuvirt attach` starts, because ZDOTDIR points here: the user's own file, which may say where the others are.
_gpuvirt_rc=$ZDOTDIR
if [[ -n ${_GPUVIRT_ZDOTDIR-} ]]; then ZDOTDIR=$_GPUVIRT_ZDOTDIR; else unset ZDOTDIR; fi
[[ -f ${ZDOTDIR:-$HOME}/.zshenv ]] && . ${ZDOTDIR:-$HOME}/.zshenv
_GPUVIRT_ZDOTDIR=${ZDOTDIR-}
ZDOTDIR=$_gpuvirt_rc
