"""Users and rights of the processes of a pod."""

from typing import Annotated

from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import Wire


class Capabilities(Wire):
    """Linux capabilities added to or dropped from the container runtime's default set."""

    add: Annotated[list[str], doc("Capabilities to grant.")] = []
    drop: Annotated[list[str], doc("Capabilities to take away; ALL takes every one.")] = []


class SELinuxOptions(Wire):
    """The SELinux label of the processes."""

    user: Annotated[str, doc("SELinux user.")] = ""
    role: Annotated[str, doc("SELinux role.")] = ""
    type: Annotated[str, doc("SELinux type.")] = ""
    level: Annotated[str, doc("SELinux level.")] = ""


class SeccompProfile(Wire):
    """Which system calls the processes may make."""

    type: Annotated[
        str,
        doc(
            "Where the profile comes from.",
            required=True,
            values=("RuntimeDefault", "Unconfined", "Localhost"),
        ),
    ] = ""
    localhost_profile: Annotated[str, doc("File on the node, for type Localhost.")] = ""


class AppArmorProfile(Wire):
    """The AppArmor profile of the processes."""

    type: Annotated[
        str,
        doc(
            "Where the profile comes from.",
            required=True,
            values=("RuntimeDefault", "Unconfined", "Localhost"),
        ),
    ] = ""
    localhost_profile: Annotated[str, doc("Profile loaded on the node, for type Localhost.")] = ""


class WindowsSecurityContextOptions(Wire):
    """Settings that only Windows nodes read."""

    gmsa_credential_spec_name: Annotated[str, doc("Name of the gMSA credential to use.")] = ""
    gmsa_credential_spec: Annotated[str, doc("The gMSA credential itself.")] = ""
    run_as_user_name: Annotated[str, doc("Windows user of the processes.")] = ""
    host_process: Annotated[bool, doc("Run as a process of the Windows host.")] = False


class SecurityContext(Wire):
    """Rights of one container; what is set here wins over the pod's."""

    capabilities: Annotated[Capabilities | None, doc("Linux capabilities.")] = None
    privileged: Annotated[bool | None, doc("Nearly the rights of root on the node.")] = None
    se_linux_options: Annotated[SELinuxOptions | None, doc("SELinux label.")] = None
    windows_options: Annotated[WindowsSecurityContextOptions | None, doc("Windows only.")] = None
    run_as_user: Annotated[int | None, doc("User id of the processes; else the image's.")] = None
    run_as_group: Annotated[int | None, doc("Group id of the processes; else root's.")] = None
    run_as_non_root: Annotated[bool | None, doc("Refuse to start as user id 0.")] = None
    read_only_root_filesystem: Annotated[bool | None, doc("Mount the root read-only.")] = None
    allow_privilege_escalation: Annotated[
        bool | None, doc("May a process gain more rights than its parent has?")
    ] = None
    proc_mount: Annotated[str, doc("How /proc is mounted: Default or Unmasked.")] = ""
    seccomp_profile: Annotated[SeccompProfile | None, doc("System call filter.")] = None
    app_armor_profile: Annotated[AppArmorProfile | None, doc("AppArmor profile.")] = None


class Sysctl(Wire):
    """One kernel parameter of the pod's namespaces."""

    name: Annotated[str, doc("Name of the parameter.", required=True)] = ""
    value: Annotated[str, doc("Value to set.", required=True)] = ""


class PodSecurityContext(Wire):
    """Rights shared by all containers of a pod."""

    se_linux_options: Annotated[SELinuxOptions | None, doc("SELinux label.")] = None
    windows_options: Annotated[WindowsSecurityContextOptions | None, doc("Windows only.")] = None
    run_as_user: Annotated[int | None, doc("User id of the processes; else the image's.")] = None
    run_as_group: Annotated[int | None, doc("Group id of the processes; else root's.")] = None
    run_as_non_root: Annotated[bool | None, doc("Refuse to start as user id 0.")] = None
    supplemental_groups: Annotated[list[int], doc("Further group ids of the processes.")] = []
    supplemental_groups_policy: Annotated[
        str, doc("Merge with the image's groups, or Strict.", values=("Merge", "Strict"))
    ] = ""
    fs_group: Annotated[int | None, doc("Group id that owns the pod's volumes.")] = None
    fs_group_change_policy: Annotated[
        str,
        doc("When to change volume ownership.", values=("OnRootMismatch", "Always")),
    ] = ""
    sysctls: Annotated[list[Sysctl], doc("Kernel parameters to set.")] = []
    seccomp_profile: Annotated[SeccompProfile | None, doc("System call filter.")] = None
    app_armor_profile: Annotated[AppArmorProfile | None, doc("AppArmor profile.")] = None
    se_linux_change_policy: Annotated[str, doc("How volumes get their SELinux label.")] = ""
