cat > /tmp/su.py <<'E2'
import sys; sys.path.insert(0,'tests/attack')
from psc import *
p=Psd(); f=frame(PULL,pull_head(0,0,[section(0,nk=60<<20,kb=60<<20)]),b'',1,bl=60<<20)+bytes(20<<20)
st=subprocess.Popen(['strace','-f','-T','-e','trace=mmap,munmap,mremap,madvise,brk','-p',str(p.p.pid),'-o','tests/attack/logs/strace.txt']); time.sleep(1)
for r in range(2):
    cs=[C(p.port,role='reader') for _ in range(5)]
    for c in cs: 
        c.s.settimeout(20); c.s.sendall(f)
    for c in cs: c.close()
time.sleep(1); st.terminate(); st.wait(); p.stop()
E2
python3 /tmp/su.py; grep -E '(mmap|munmap|mremap|madvise).*[0-9]{7}' logs/strace.txt | head -60
