"""The kubelet: runs the pods of a virtual node as processes of this machine."""
