"""The manual pages, which the programs print themselves (common/daemon/man_page.h)."""

def _man_pages(ctx):
    folder = ctx.actions.declare_directory(ctx.label.name)
    daemons = ctx.executable.coordinator, ctx.executable.agent
    ctx.actions.run_shell(
        outputs = [folder],
        tools = [ctx.executable.tercio] + list(daemons),
        command = "\n".join(
            ["set -e", "mkdir -p {}/man8".format(folder.path), "{} man --output {}/man1".format(ctx.executable.tercio.path, folder.path)] +
            ["{} --man > {}/man8/{}.8".format(daemon.path, folder.path, daemon.basename) for daemon in daemons],
        ),
        mnemonic = "ManPages",
    )
    return [DefaultInfo(files = depset([folder]))]

# A folder with man1/ and man8/.
man_pages = rule(
    implementation = _man_pages,
    attrs = {
        "tercio": attr.label(executable = True, cfg = "target"),
        "coordinator": attr.label(executable = True, cfg = "target"),
        "agent": attr.label(executable = True, cfg = "target"),
    },
)
