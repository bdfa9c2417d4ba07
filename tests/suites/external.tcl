# Sourced by a copy of the suite's tests/test_helper.tcl. Each start_server asks run.py, at the port in TIDEMARK_SUITE, for a new server
# behind a new proxy. So the suite runs in its external-server mode, but each block begins with a new server, and blocks can start two.

proc suite_control {args} {
    set control [socket 127.0.0.1 $::env(TIDEMARK_SUITE)]
    fconfigure $control -encoding utf-8 -translation lf
    puts $control [join $args "\t"]
    flush $control
    set answer [gets $control]
    close $control
    if {[lindex $answer 0] eq "error"} {
        error "start_server: $answer"
    }
    return $answer
}

proc run_external_server_test {code overrides} {
    lassign [suite_control start {*}$overrides] port pid log
    set srv {}
    dict set srv "host" 127.0.0.1
    dict set srv "port" $port
    dict set srv "pid" $pid
    dict set srv "stdout" $log
    dict set srv "stderr" $log
    dict set srv "config" [dict merge [dict create port $port] $overrides]
    dict set srv "client" [redis 127.0.0.1 $port 0 $::tls]
    lappend ::servers $srv
    # As in the suite itself: an error outside of a test is one failure, and ends the block.
    if {[catch {uplevel 2 $code} error]} {
        incr ::num_failed
        send_data_packet $::test_server_fd err [join [list "(outside of a test) $error" $::errorInfo] "\n"]
    }
    catch {[dict get [lindex $::servers end] "client"] close}
    set ::servers [lrange $::servers 0 end-1]
    suite_control stop $port
}

proc restart_server {level wait_ready rotate_logs {reconnect 1} {shutdown sigterm}} {
    set srv [lindex $::servers end+$level]
    lassign [suite_control restart [dict get $srv "port"]] port pid log
    dict set srv "pid" $pid
    lset ::servers end+$level $srv
    if {$reconnect} {
        reconnect $level
    }
}

# A failed test may leave its connection in a transaction, logged in as another user, or with unread replies, or it may leave
# all clients paused: so the next test gets a new connection.
rename test suite_test
proc test {args} {
    set failed $::num_failed
    uplevel 1 [list suite_test {*}$args]
    if {$::num_failed > $failed && [llength $::servers] > 0} {
        catch {suite_control unpause [srv port]}
        catch {
            # The old connection stays open, because the block may use it under another name.
            set srv [lindex $::servers end]
            dict set srv "client" [redis [dict get $srv "host"] [dict get $srv "port"] 0 $::tls]
            lset ::servers end $srv
        }
    }
}
