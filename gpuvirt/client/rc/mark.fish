# Read by the fish that `gpuvirt attach` starts, after the user's own configuration: the mark in the prompt.
functions -q fish_prompt; and functions -c fish_prompt _gpuvirt_prompt
function _gpuvirt_status
    return $argv[1]
end
function fish_prompt
    set -l code $status
    printf '%s' $_GPUVIRT_MARK
    _gpuvirt_status $code
    _gpuvirt_prompt
end
